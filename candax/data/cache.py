"""Data sets in binary, in the user's cache folder, so that they are parsed once only.

One file a data set: a line of JSON (format, key, size and digest of what follows) and then NumPy's npz. A file is
written beside its place and moved there when complete, so that a reader sees all of it or nothing; the digest is
checked before anything is used. What does not match in any way is built again. Nothing is pickled.
"""

import dataclasses
import functools
import hashlib
import io
import json
import os
import time
import warnings
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import platformdirs
from scipy.sparse import csr_array

from candax.data.examples import Dataset, Examples
from candax.files import UNFINISHED, replacing

FORMAT = "candax-dataset-1"
CACHE_VARIABLE = "CANDAX_CACHE"
_ABANDONED_SECONDS = 86_400.0


T = TypeVar("T")


class BrokenCacheError(ValueError):
    """A cache file that is not, or no longer, what was written."""


@dataclasses.dataclass(frozen=True)
class Form(Generic[T]):
    """How something is written and read: as named arrays without objects in them."""

    to_arrays: Callable[[T], Mapping[str, np.ndarray]]
    from_arrays: Callable[[Mapping[str, np.ndarray]], T]


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


def cached(name: str, identity: str, key: Mapping[str, object], build: Callable[[], Dataset]) -> Dataset:
    """Takes a data set from the cache, or builds it and puts it there.

    Args:
        name: Opens the file's name, for people who look into the folder.
        identity: What the data set is, such as its folder. Data sets of one identity replace each other in the cache.
        key: All that decides the content (versions, sizes and times of sources; JSON values). A cache file with another
            key is not used.
        build: Makes the data set.

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
    return cached_as(DATASET, name, identity, key, build)


def cached_as(form: Form[T], name: str, identity: str, key: Mapping[str, object], build: Callable[[], T]) -> T:
    """As ``cached``, for anything that has a form.

    Example:
        >>> from unittest import mock
        >>> form = Form(lambda numbers: {"numbers": numbers}, lambda arrays: arrays["numbers"])
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     first = cached_as(form, "numbers", "numbers", {}, lambda: np.arange(3))
        ...     again = cached_as(form, "numbers", "numbers", {}, lambda: 1 / 0)
        >>> again.tolist()
        [0, 1, 2]
    """
    digest = hashlib.blake2b(f"{name}\0{identity}".encode(), digest_size=8).hexdigest()
    path = cache_folder() / f"{name}-{digest}.candax"
    try:
        found = read(path, key, form)
    except BrokenCacheError as error:
        warnings.warn(f"the cached data set {path} is broken ({error}); it is built again", stacklevel=2)
        found = None
    except OSError as error:
        _warn_once(f"the cached data set {path} cannot be read ({error}); going on without it")
        found = None
    if found is not None:
        return found
    dataset = build()
    try:
        write(path, key, dataset, form)
    except OSError as error:
        _warn_once(
            f"the cache folder {path.parent} cannot be written ({error}); going on without a cache, so the data set is "
            f"built again each time. Set {CACHE_VARIABLE} to a folder that can be written."
        )
    return dataset


def read(path: Path, key: Mapping[str, object], form: Form[Any] | None = None) -> Any:
    """Reads a cache file.

    Args:
        path: The file.
        key: The key it must have been written with.
        form: Of what was written; None: a data set.

    Returns:
        What was written, or None if there is no such file or its key is another one.

    Raises:
        BrokenCacheError: If the file is not what was written.
        OSError: If the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            # A manifest is short; a broken file may be one endless line.
            manifest = _manifest(file.readline(1 << 20))
            if manifest.get("key") != _plain(key):
                return None
            payload = file.read()
    except FileNotFoundError:
        return None
    if len(payload) != manifest.get("bytes") or _digest(payload) != manifest.get("digest"):
        raise BrokenCacheError("its checksum does not match")
    try:
        with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
            return (form or DATASET).from_arrays({name: arrays[name] for name in arrays.files})
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise BrokenCacheError(str(error)) from error


def write(path: Path, key: Mapping[str, object], dataset: Any, form: Form[Any] | None = None) -> None:
    """Writes a cache file in one step: readers see the old file, or no file, until the new one is complete on disk.

    Raises:
        OSError: If the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(path.parent)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in (form or DATASET).to_arrays(dataset).items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    payload = buffer.getbuffer()
    manifest = {"format": FORMAT, "key": _plain(key), "bytes": len(payload), "digest": _digest(payload)}
    with replacing(path) as file:
        file.write(json.dumps(manifest, sort_keys=True).encode() + b"\n")
        file.write(payload)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _manifest(line: bytes) -> dict[str, object]:
    try:
        manifest = json.loads(line)
    except ValueError as error:
        raise BrokenCacheError("its first line is no manifest") from error
    if not line.endswith(b"\n") or not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BrokenCacheError("its first line is no manifest of this format")
    return manifest


def _plain(key: Mapping[str, object]) -> object:
    """The key as JSON gives it back (lists for tuples)."""
    return json.loads(json.dumps(key, sort_keys=True))


def _digest(payload: bytes | memoryview) -> str:
    return hashlib.blake2b(payload, digest_size=32).hexdigest()


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

    def names(value: list[str] | None) -> tuple[str, ...] | None:
        return None if value is None else tuple(value)

    text = json.loads(arrays["text"].tobytes())
    train, test = (Examples(matrix(f"{split}_features"), matrix(f"{split}_labels")) for split in ("train", "test"))
    return Dataset(text["name"], train, test, names(text["feature_names"]), names(text["class_names"]))


# Looked up when called, not here.
DATASET: Form[Dataset] = Form(lambda dataset: _to_arrays(dataset), lambda arrays: _from_arrays(arrays))


def _remove_abandoned(folder: Path) -> None:
    """Removes what killed processes left behind; whatever is younger may still be in the making."""
    for path in folder.glob(f"*{UNFINISHED}"):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
                path.unlink()
        except FileNotFoundError:  # another process was faster
            continue


@functools.cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=3)
