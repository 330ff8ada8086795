"""An index of any kind in one file: safetensors with a header and a digest, written atomically, never pickled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Classes, Retriever, State
from candax.checks import checked, described
from candax.files import WrongFileError, read_arrays, write_arrays
from candax.samplers.hashing_forest import forest_index
from candax.samplers.ivf.factory import ivf_index
from candax.samplers.knn_label import label_index
from candax.samplers.lsh.codes import HashFamily
from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.search import lsh_index
from candax.samplers.lsh.simhash import simhash
from candax.samplers.top_k import exact_index

# The version is part of the name: when what is written changes, it becomes a new kind of file.
_KIND = "candax index 1"
_KINDS: dict[str, Callable[..., Retriever]] = {
    "exact": exact_index,
    "forest": forest_index,
    "ivf": ivf_index,
    "labels": label_index,
    "lsh": lsh_index,
}
_FAMILIES: dict[str, Callable[..., HashFamily]] = {"dwta": dwta, "simhash": simhash}


@checked
def save_index(
    path: Path | str, retriever: Retriever, state: State, classes: Classes, *, with_classes: bool = True
) -> None:
    """Writes an index, and the classes that it searches; readers see all of the file or none.

    Args:
        path: of the file; no ending is added to its name.
        retriever: what built the state.
        state: as built, or as it became since.
        classes: the output layer. Its label counts are not written.
        with_classes: False: the index alone, for classes that are stored elsewhere, such as in a checkpoint.

    Raises:
        ValueError: if the retriever has settings that no file can hold, such as a hash family of your own.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx, tempfile
        >>> classes = cx.Classes(jax.random.normal(jax.random.key(0), (50, 4)))
        >>> index = cx.samplers.ivf_index(num_centers=2, hm_num=50, num_kept=50)
        >>> path = Path(tempfile.mkdtemp()) / "index.safetensors"
        >>> save_index(path, index, index.build(jax.random.key(1), classes), classes)
        >>> index, state, classes = load_index(path)
        >>> index.find(state, 3 * classes.vectors[7:8], classes, 1)[1].shape
        (1, 1)
    """
    check_state(retriever, state, classes)
    leaves = _named({"state": state} | ({"classes": _parts(classes)} if with_classes else {}))
    # As unsigned integers of the same width, because NumPy has no bfloat16.
    plain = {name: _plain(np.asarray(array)) for name, array in _without_keys(leaves).items()}
    header = {
        "kind": retriever.kind,
        "settings": _settings(retriever),
        "num_classes": classes.num_classes,
        "dim": classes.vectors.shape[1],
        "dtypes": {name: str(array.dtype) for name, array in _parts(classes).items()},
        "normalized": classes.normalized,
        "with_classes": with_classes,
        "keys": {name: str(jax.random.key_impl(leaf)) for name, leaf in leaves.items() if _is_key(leaf)},
    }
    write_arrays(Path(path), _KIND, header, plain)


@checked
def load_index(path: Path | str, retriever: Retriever | None = None) -> tuple[Retriever, State, Classes | None]:
    """Reads what ``save_index`` wrote.

    To search in another way (``hm_num`` ...) make the retriever again with other settings, and use it with the state:
    ``ivf_index(**retriever.settings | {"hm_num": 1000})``.

    Args:
        path: of the file.
        retriever: the one whose index the file must hold, with the same settings; needed for a kind of your own. None:
            it is made from the settings in the file.

    Returns:
        The retriever, its state, and the classes if they were saved.

    Raises:
        ValueError: for a file that holds no index, an index of another kind or a newer version, only a part of an
            index, or an index that has been changed.
        FileNotFoundError: if there is no such file.
    """
    path = Path(path)
    try:
        header, plain = read_arrays(path, _KIND)
    except WrongFileError as error:
        raise _wrong(path, f"another one, a part of one or one that was changed ({error})") from error
    if retriever is None:
        if header["kind"] not in _KINDS:
            raise _wrong(path, f"the kind {header['kind']!r}, not one of {', '.join(_KINDS)}: pass retriever=")
        retriever = _KINDS[header["kind"]](**_from_file(path, header["settings"]))
    made, settings = _settings(retriever), header["settings"]
    if retriever.kind != header["kind"]:
        raise _wrong(path, f"an index of kind {header['kind']!r} where the retriever's kind is {retriever.kind!r}")
    if made != settings:
        differ = {name: (settings.get(name), made.get(name)) for name in {*settings, *made}}
        differ = {name: pair for name, pair in differ.items() if pair[0] != pair[1]}
        raise _wrong(path, f"other settings than the retriever's (the file's first): {differ}")
    normalized, rows = header["normalized"], header["num_classes"]
    shapes = {"vectors": (rows, header["dim"]), "biases": (rows,), "num_valid": ()}
    parts = {name: jax.ShapeDtypeStruct(shapes[name], dtype) for name, dtype in header["dtypes"].items()}

    def build(key: jax.Array, parts: dict[str, jax.Array]) -> State:
        return retriever.build(key, Classes(**parts, normalized=normalized))

    wanted = {"state": jax.eval_shape(build, jax.random.key(0), parts)}
    if header["with_classes"]:
        wanted["classes"] = parts
    leaves = _named(wanted)
    named = jax.eval_shape(_without_keys, leaves)
    expected = {name: (array.shape, np.dtype(f"u{array.dtype.itemsize}")) for name, array in named.items()}
    found = {name: (array.shape, np.dtype(f"u{array.dtype.itemsize}")) for name, array in plain.items()}
    if expected != found:
        others = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
        raise _wrong(path, f"other arrays than this version's indexes have: {', '.join(others)}")
    arrays = {name: jnp.asarray(plain[name].view(named[name].dtype)) for name in leaves}
    keys = header.get("keys", {})  # files of older versions have none
    arrays |= {name: jax.random.wrap_key_data(arrays[name], impl=keys[name]) for name in keys if name in arrays}
    others = [name for name, leaf in leaves.items() if arrays[name].dtype != leaf.dtype]
    if others:
        raise _wrong(path, f"keys of another kind than this program's, which jax.random.key makes: {', '.join(others)}")
    loaded = jax.tree.unflatten(jax.tree.structure(wanted), list(arrays.values()))
    classes = Classes(**loaded["classes"], normalized=normalized) if "classes" in loaded else None
    return retriever, loaded["state"], classes


def _wrong(path: Path, got: str) -> ValueError:
    return ValueError(
        f"expected {path} to be an index that candax.samplers.save_index wrote, got {got}. Give the path of such a "
        "file, or build the index anew and save it."
    )


def _parts(classes: Classes) -> dict[str, jax.Array]:
    parts = {"vectors": classes.vectors, "biases": classes.biases, "num_valid": classes.num_valid}
    return {name: jnp.asarray(array) for name, array in parts.items() if array is not None}


def check_state(retriever: Retriever, state: State, classes: Classes) -> None:
    """Raises ValueError unless the state has the structure, shapes and types that the retriever would build."""
    built = jax.eval_shape(retriever.build, jax.random.key(0), classes)

    def shapes(tree: State) -> list[Any]:
        return [(jnp.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in jax.tree.leaves(tree)]

    if shapes(built) != shapes(state) or str(jax.tree.structure(built)) != str(jax.tree.structure(state)):
        raise ValueError(
            f"expected state to be what build(key, classes) of this retriever gives, {len(shapes(built))} arrays, got "
            f"{described(state)}."
        )


def _named(tree: Any) -> dict[str, Any]:
    """Leaves by their names, such as ``state.lists.ids``."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in flat}


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _without_keys(tree: Any) -> Any:
    """With the numbers of random keys in their place."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if _is_key(leaf) else leaf, tree)


def _plain(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.dtype.itemsize}")


def _settings(retriever: Retriever) -> dict[str, Any]:
    """The settings as a file holds them."""
    families = {name: value for name, value in retriever.settings.items() if isinstance(value, HashFamily)}
    named = {name: {"hash_family": family.made_by} for name, family in families.items()}
    try:
        if all(family.made_by for family in families.values()):
            return json.loads(json.dumps({**retriever.settings, **named}, default=np.generic.item))
    except TypeError:
        pass
    raise ValueError(
        f"expected settings that a file can hold (numbers, names, and hash families made by simhash() or dwta()), got "
        f"{dict(retriever.settings)} of a retriever of kind {retriever.kind!r}."
    )


def _from_file(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    def made(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        family, *arguments = value["hash_family"]
        if family not in _FAMILIES:
            raise _wrong(path, f"the hash family {family!r}, not one of {', '.join(_FAMILIES)}: pass retriever=")
        return _FAMILIES[family](**dict(arguments))

    return {name: made(value) for name, value in settings.items()}
