"""An index in one file: arrays and static numbers as NumPy's ``npz``, written atomically, never pickled."""

import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Classes
from candax.files import replacing
from candax.samplers.common.pending import Pending
from candax.samplers.ivf.codes import Codebook
from candax.samplers.ivf.index import IVFIndex, IVFState
from candax.samplers.ivf.lists import Lists

_FORMAT = "candax IVF index 1"
_LISTS = ("first_block", "sizes", "ids", "places")
_PENDING = ("ids", "rows", "number")
_REQUIRED = ("centers", "codes", "num_valid", "updates", *(f"lists.{name}" for name in _LISTS))


def save_index(path: Path | str, index: IVFIndex, state: IVFState, classes: Classes | None = None) -> None:
    """Writes an index, and the classes that it searches if they are given; readers see all of the file or none.

    Args:
        path: of the file; its name is taken as it is.
        index: the static numbers.
        state: as built.
        classes: the output layer, for an index that is used by itself. Its label counts are not written.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx, tempfile
        >>> classes = cx.Classes(jax.random.normal(jax.random.key(0), (50, 4)), None, None, jnp.int32(50))
        >>> index = cx.samplers.ivf_index(num_centers=2, hm_num=50, num_kept=50)
        >>> path = Path(tempfile.mkdtemp()) / "index.npz"
        >>> save_index(path, index, index.build(jax.random.key(1), classes), classes)
        >>> index, state, classes = load_index(path)
        >>> index.search(state, classes.vectors[7:8] * 3, classes, 1)[1].shape
        (1, 1)
    """
    path = Path(path)
    arrays = {name: np.asarray(array) for name, array in _leaves(state).items()}
    if classes is not None:
        parts = {"vectors": classes.vectors, "biases": classes.biases, "num_valid": classes.num_valid}
        arrays |= {f"classes.{name}": np.asarray(array) for name, array in parts.items() if array is not None}
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    header = {"format": _FORMAT, "index": index._asdict(), "normalized": state.normalized, "dtypes": dtypes}
    # NumPy's format knows no bfloat16: such arrays are written as integers of their size.
    written: dict[str, Any] = {name: _plain(array) for name, array in arrays.items()}
    with replacing(path) as file:
        np.savez(file, header=np.array(json.dumps(header)), **written)


def load_index(path: Path | str) -> tuple[IVFIndex, IVFState, Classes | None]:
    """Reads what ``save_index`` wrote.

    Args:
        path: of the file.

    Returns:
        The index, its state, and the classes if they were saved.

    Raises:
        ValueError: for a file that holds no index, or only a part of one.
        FileNotFoundError: if there is no such file.
    """
    index, normalized, arrays = _read(Path(path))
    index.check()
    missing = [name for name in _REQUIRED if name not in arrays]
    if missing:
        raise ValueError(f"expected {path} to hold the arrays of an index, but {missing} are missing: build it anew.")
    part = arrays.get
    state = IVFState(
        arrays["centers"],
        Lists(*(arrays[f"lists.{name}"] for name in _LISTS)),
        arrays["codes"],
        Codebook(part("book.mean"), part("book.rotation"), part("book.dither")),
        arrays["num_valid"],
        arrays["updates"],
        part("biases"),
        part("longest"),
        None if "pending.ids" not in arrays else Pending(*(arrays[f"pending.{name}"] for name in _PENDING)),
        normalized,
    )
    if "classes.vectors" not in arrays:
        return index, state, None
    classes = Classes(arrays["classes.vectors"], part("classes.biases"), None, arrays["classes.num_valid"], normalized)
    return index, state, classes


def _read(path: Path) -> tuple[IVFIndex, bool, dict[str, jax.Array]]:
    """The static numbers, whether the head is normalised, and the arrays by their names."""
    wrong = f"expected {path} to be a file that candax.samplers.save_index wrote, got"
    what_to_do = "Give the path of such a file, or build the index anew and save it."
    with path.open("rb") as raw:
        begin = raw.read(16)
    # NumPy would say of most other files that they hold pickled data.
    if not zipfile.is_zipfile(path):
        raise ValueError(f"{wrong} no npz archive, or only a part of one (it begins with {begin!r}). {what_to_do}")
    try:
        with np.load(path, allow_pickle=False) as file:
            names = file.files
            header = json.loads(str(file["header"])) if "header" in names else None
            if isinstance(header, dict) and header.get("format") == _FORMAT:
                dtypes = header["dtypes"]
                arrays = {name: jnp.asarray(file[name].view(jnp.dtype(dtypes[name]))) for name in dtypes}
                return IVFIndex(**header["index"]), header["normalized"], arrays
    except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{wrong} an archive that does not read as one: {error}. {what_to_do}") from error
    found = f"the format {header['format']!r}" if isinstance(header, dict) and "format" in header else "no header"
    raise ValueError(f"{wrong} {found} instead of {_FORMAT!r} (arrays: {names[:8]}). {what_to_do}")


def _leaves(state: IVFState) -> dict[str, jax.Array]:
    """Arrays by their names, such as ``lists.ids``."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


def _plain(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "biuf" else array.view(f"u{array.dtype.itemsize}")
