"""Data sets in binary, in the user's cache folder, so that they are parsed only once.

One file per data set, safetensors with a digest (``candax.files``), which is compared before anything is used. A broken
file is built again with a warning, an outdated one without. Of several processes that want a data set, one builds it.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import platformdirs
from scipy.sparse import csr_array

from candax.checks import warn
from candax.data.examples import Dataset, Examples
from candax.files import WrongFileError, read_arrays, remove_abandoned, write_arrays

FORMAT = "candax-dataset-2"
CACHE_VARIABLE = "CANDAX_CACHE"
_LONGEST_NAME = 100


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Form(Generic[T]):
    """How something is written and read: as named arrays without objects in them, left on disk if ``mapped``."""

    to_arrays: Callable[[T], Mapping[str, np.ndarray]]
    from_arrays: Callable[[Mapping[str, np.ndarray]], T]
    mapped: bool = False


def form_of(kind: type[T], *, mapped: bool = False) -> Form[T]:
    """The form of a dataclass whose fields are arrays, or texts, numbers and tuples of these, which JSON can hold.

    Example:
        >>> @dataclasses.dataclass
        ... class Named:
        ...     names: tuple[str, ...]
        ...     numbers: np.ndarray
        >>> form = form_of(Named)
        >>> form.from_arrays(form.to_arrays(Named(("a", "b"), np.arange(2))))
        Named(names=('a', 'b'), numbers=array([0, 1]))
    """

    def to_arrays(thing: T) -> dict[str, np.ndarray]:
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
        arrays = {name: value for name, value in fields.items() if isinstance(value, np.ndarray)}
        about = {name: value for name, value in fields.items() if name not in arrays}
        return {**arrays, "about": np.frombuffer(json.dumps(about).encode(), np.uint8)}

    def from_arrays(arrays: Mapping[str, np.ndarray]) -> T:
        fields = {name: array for name, array in arrays.items() if name != "about"}
        return kind(**fields, **_told(arrays["about"]))

    return Form(to_arrays, from_arrays, mapped)


def _told(text: np.ndarray) -> dict[str, Any]:
    """What is written there as JSON, with tuples for lists."""
    return {name: tuple(of) if isinstance(of, list) else of for name, of in json.loads(text.tobytes()).items()}


def _to_arrays(dataset: Dataset) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for split, examples in (("train", dataset.train), ("test", dataset.test)):
        for part, matrix in (("features", examples.features), ("labels", examples.labels)):
            arrays[f"{split}_{part}_indptr"] = matrix.indptr
            arrays[f"{split}_{part}_indices"] = matrix.indices
            arrays[f"{split}_{part}_shape"] = np.asarray(matrix.shape, dtype=np.int64)
        arrays[f"{split}_features_data"] = examples.features.data
    text = {"name": dataset.name, "feature_names": dataset.feature_names, "class_names": dataset.class_names}
    arrays["text"] = np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
    return arrays


def _from_arrays(arrays: Mapping[str, np.ndarray]) -> Dataset:
    def matrix(name: str) -> csr_array:
        indices = arrays[f"{name}_indices"]
        data = arrays[f"{name}_data"] if name.endswith("features") else np.ones(len(indices), dtype=bool)
        rows, columns = arrays[f"{name}_shape"].tolist()
        return csr_array((data, indices, arrays[f"{name}_indptr"]), shape=(rows, columns))

    train, test = (Examples(matrix(f"{split}_features"), matrix(f"{split}_labels")) for split in ("train", "test"))
    return Dataset(train=train, test=test, **_told(arrays["text"]))


DATASET = Form(_to_arrays, _from_arrays)


def cache_folder() -> Path:
    """Where data sets are cached: the environment variable ``CANDAX_CACHE``, else the user's cache folder.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, CANDAX_CACHE="/tmp/elsewhere"):
        ...     cache_folder().name
        'elsewhere'
    """
    chosen = os.environ.get(CACHE_VARIABLE, "")
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("candax"))


def cached(name: str, identity: str, key: Mapping[str, object], build: Callable[[], T], form: Form[Any] = DATASET) -> T:
    """Takes a data set from the cache, or builds it and puts it there.

    Args:
        name: The start of the file's name, for people who look into the folder.
        identity: What the data set is, such as its folder. Data sets of one identity replace each other in the cache.
        key: All that decides the content (versions, sizes and times of sources; JSON values). A cache file with another
            key is not used.
        build: Makes the data set.
        form: The form of what ``build`` makes.

    Returns:
        The data set.

    Example:
        >>> row = csr_array(np.ones((1, 1), dtype=np.float32))
        >>> tiny = Examples(row, row.astype(bool))
        >>> from unittest import mock
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     first = cached("tiny", "tiny", {"version": 1}, lambda: Dataset("tiny", tiny, tiny))
        ...     again = cached("tiny", "tiny", {"version": 1}, lambda: 1 / 0)
        >>> again.name
        'tiny'
    """
    digest = hashlib.blake2b(f"{name}\0{identity}".encode(), digest_size=8).hexdigest()
    # Cut, as file systems take names of up to 255 bytes, and locks and unfinished files have longer ones.
    start = name.encode()[:_LONGEST_NAME].decode(errors="ignore")
    path = cache_folder() / f"{start}-{digest}.safetensors"
    found = _found(path, key, form)
    if found is not None:
        return found
    with _alone(path):
        found = _found(path, key, form)  # another process may have built it meanwhile
        if found is not None:
            return found
        dataset = build()
        try:
            write(path, key, dataset, form)
        except OSError as error:
            _warn_unwritable(path, error)
    return dataset


def read(path: Path, key: Mapping[str, object], form: Form[Any] = DATASET) -> Any:
    """What was written into a cache file; None if no file has this key.

    Raises:
        WrongFileError: If the file is not what was written.
        OSError: If the file cannot be read.
    """
    try:
        found, arrays = read_arrays(path, FORMAT, form.mapped)
        return form.from_arrays(arrays) if found == json.loads(json.dumps(key)) else None
    except FileNotFoundError:
        return None


def write(path: Path, key: Mapping[str, object], dataset: Any, form: Form[Any] = DATASET) -> None:
    """Writes a cache file in one step: readers see the old file, or no file, until the new one is complete on disk.

    Raises:
        OSError: If the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent)
    write_arrays(path, FORMAT, key, form.to_arrays(dataset))


def _found(path: Path, key: Mapping[str, object], form: Form[T]) -> T | None:
    try:
        return read(path, key, form)
    except WrongFileError as error:
        warn(f"a cached data set is broken and is built again: {error}")
    except OSError as error:
        _warn_once(f"the cached data set {path} cannot be read ({error}); going on without it")
    return None


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keeps other processes out of such a block for the same file; does nothing where no lock is possible."""
    from filelock import FileLock, Timeout

    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            warn(f"another process builds {path}: waiting until it is there")
            lock.acquire()
    except (OSError, NotImplementedError) as error:
        _warn_unwritable(path, error)
    try:
        yield
    finally:
        lock.release()


def _warn_unwritable(path: Path, error: Exception) -> None:
    _warn_once(
        f"the cache file {path} cannot be written ({error}); going on without a cache, so it is built again each time. "
        f"Set {CACHE_VARIABLE} to a folder that can be written and has space."
    )


@functools.cache
def _warn_once(message: str) -> None:
    warn(message)
