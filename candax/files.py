"""Files that are complete or not there, and arrays in them."""

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

UNFINISHED = ".unfinished"
_HOST = "".join(c if c.isalnum() or c == "-" else "-" for c in platform.node()) or "host"
_ABANDONED_SECONDS = 86_400.0
_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


class WrongFileError(ValueError):
    """A file that does not hold, or no longer holds, what it should."""


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of ``path`` once the block has ended and all is on disk.

    Readers see the old file, or none, until then; if the block raises, they go on doing so. A killed process leaves a
    file beside it whose name ends in ``UNFINISHED``; the next one that writes ``path`` removes it. A link stays, and
    what it leads to is replaced; a pipe or a device, which cannot be replaced, is written to at once.

    Raises:
        OSError: if there is no space, or no permission; it names the file and the bytes written so far.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "letter"
        >>> with replacing(path) as file:
        ...     _ = file.write(b"dear")
        ...     print(path.exists())
        False
        >>> path.read_bytes()
        b'dear'
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        with naming(path), path.open("wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path)) if path.is_symlink() else path
    remove_abandoned(path.parent, f".{path.name}")
    temporary = path.with_name(f".{path.name}.{_HOST}.{os.getpid()}.{threading.get_ident()}{UNFINISHED}")
    try:
        with temporary.open("w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        written = temporary.stat().st_size if temporary.exists() else 0
        if error.errno is None:
            raise
        reason = f"{error.strerror}; {written} bytes of it were written. Free space, or choose a folder to write to"
        if error.errno == errno.ENOENT and not path.parent.exists():
            reason = f"{error.strerror}: make the folder {path.parent}, or choose another one"
        raise type(error)(error.errno, reason, str(path)) from error
    finally:
        # Where the folder has become unreadable this fails too, and must not hide why.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of files that do not say which get the name of a file or folder.

    Example:
        >>> import errno
        >>> with naming(Path("letters")):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device. Free space, or choose a folder to write to: 'letters'
    """
    try:
        yield
    except Exception as error:
        code = error.errno if isinstance(error, OSError) else _told_code(error)
        if code in (None, errno.ENOENT) or getattr(error, "filename", None) is not None:
            raise
        assert code is not None
        denied = code in (errno.EACCES, errno.EPERM)
        advice = "Permit it, or choose another folder" if denied else "Free space, or choose a folder to write to"
        raise OSError(code, f"{os.strerror(code)}. {advice}", str(path)) from error


def removed(folder: Path) -> FileNotFoundError:
    """What to raise where the folder that a run writes to is gone."""
    reason = "The folder was removed while a run wrote there. Train again, and leave it until the run has ended"
    return FileNotFoundError(errno.ENOENT, reason, str(folder))


def _told_code(error: BaseException | None) -> int | None:
    """The number of the system's error, which TensorStore puts into the text of its own."""
    while error is not None:
        if found := re.search(r"os_error_code='(\d+)'", str(error)):
            return int(found[1])
        error = error.__cause__ or error.__context__
    return None


def remove_abandoned(folder: Path, start: str = "") -> None:
    """Removes what killed processes left in a folder, in files whose names begin so.

    A file names the machine and the process that write it. It goes if that process of this machine is dead, or, where
    that cannot be told, if nothing was written to it for a day; never while its process lives.
    """
    for path in folder.glob(f"*{UNFINISHED}"):
        if not path.name.startswith(start):
            continue
        *_, host, process, _, _ = ("", "", "", "", *path.name.split("."))
        with contextlib.suppress(OSError):  # another process was faster, or it is not ours to remove
            if os.name == "posix" and host == _HOST and process.isdigit():
                abandoned = not _lives(int(process))
            else:
                abandoned = time.time() - path.stat().st_mtime > _ABANDONED_SECONDS
            if abandoned:
                path.unlink()


def write_arrays(path: Path, kind: str, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes arrays as safetensors, in one step, with what they are and a digest of all of it in the metadata.

    Args:
        path: of the file.
        kind: the format's name, which ``read_arrays`` asks for.
        about: JSON values.
        arrays: without objects in them.

    Raises:
        ValueError: for an array of objects.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "numbers"
        >>> write_arrays(path, "numbers-1", {"of": "none"}, {"a": np.arange(3)})
        >>> read_arrays(path, "numbers-1")
        ({'of': 'none'}, {'a': array([0, 1, 2])})
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    if faulty := [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
        raise ValueError(f"{path}: expected arrays of numbers, got {faulty} of other types.")
    # Reshaped, because NumPy gives what is made contiguous one dimension at least.
    arrays = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in arrays.items()}
    text = json.dumps(about, sort_keys=True)
    with replacing(path) as file:
        # One entry only: safetensors writes several in any order, and equal content is to give equal files.
        try:
            save_file(dict(arrays), file.name, {"candax": json.dumps([kind, text, _digest(kind, text, arrays)])})
        except SafetensorError as error:
            if found := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(found[1]), os.strerror(int(found[1]))) from error
            raise


def read_arrays(path: Path, kind: str, mapped: bool = False) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Reads what ``write_arrays`` wrote, and compares the digest: 2.4 s of processor time per gigabyte.

    Args:
        path: of the file.
        kind: as it was written with.
        mapped: whether arrays stay on disk (read-only), instead of being copied into memory.

    Raises:
        WrongFileError: if the file is of another kind, or not what was written.
        OSError: if it cannot be read.
    """
    # Not by safetensors' reader, which copies. The header's length is the first number, offsets count from its end.
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(length) if length <= size - 8 else b"")
            found, text, digest = json.loads(header.pop("__metadata__")["candax"])
            if found != kind:
                raise WrongFileError(f"{path}: expected a file of the kind {kind!r}, got {found!r}.")
            raw = np.memmap(file, np.uint8, "r")
            arrays = {name: _view(raw[8 + length :], **spec) for name, spec in header.items()}
            whole = size == 8 + length + max([0, *(spec["data_offsets"][1] for spec in header.values())])
            if not whole or digest != _digest(kind, text, arrays):
                raise WrongFileError(f"{path}: its checksum does not match: it was changed after it was written.")
            return json.loads(text), arrays if mapped else {n: np.array(a) for n, a in arrays.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, WrongFileError):
                raise
            raise WrongFileError(f"{path}: expected safetensors of the kind {kind!r}, got another file.") from error


def _view(raw: np.ndarray, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    return raw[slice(*data_offsets)].view(_DTYPES[dtype]).reshape(shape)


def _digest(kind: str, text: str, arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.blake2b(json.dumps([kind, text]).encode(), digest_size=32)
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(json.dumps([name, array.dtype.str, list(array.shape)]).encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def digest_of(*arrays: np.ndarray) -> str:
    """A digest of the arrays' values, shapes and dtypes, the same in every process.

    Example:
        >>> digest_of(np.arange(3)) == digest_of(np.arange(4)[:3])
        True
    """
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(f"{array.dtype}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
