"""Files, plain or compressed, as bytes and as lines: the one place that decompresses.

Reading is bounded, so that a small file cannot fill the memory: a file may unpack to 100 times its size (or to 1 GiB,
if that is more), and a line may have 64 MiB. Text compresses by a factor of 3 to 20.
"""

import contextlib
import importlib
import io
import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

# The module that unpacks each ending; Python has Zstandard from 3.14 on.
MODULES = {".gz": "gzip", ".bz2": "bz2", ".xz": "lzma", ".zst": "compression.zstd"}
ENDINGS = ".gz, .bz2, .xz, .zst"
MOST_BYTES = 1 << 30
MOST_TIMES = 100
LONGEST_LINE = 1 << 26


class DamagedFileError(ValueError):
    """A compressed file that breaks off, is damaged, or unpacks to more than the limit."""


def most_bytes(path: Path) -> int:
    """The most bytes of text that a file can hold: a header that promises more is not believed."""
    size = os.path.getsize(path)
    return max(MOST_BYTES, MOST_TIMES * size) if path.suffix.lower() in MODULES else size


class _Bounded(io.RawIOBase):
    """The output of a decompressor, up to the limit, with errors that name the file.

    Of ``text``, without NUL bytes: those of UTF-16, for one, would be taken for UTF-8.
    """

    def __init__(self, path: Path, stream: Any, compressed: bool, text: bool) -> None:
        self._path, self._stream, self._read, self._text, self._line = path, stream, 0, text, 1
        self._limit = most_bytes(path) if compressed else None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            piece = self._stream.read(len(buffer))
        except Exception as error:  # every decompressor has errors of its own
            if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
                raise
            raise DamagedFileError(
                f"{self._path}: expected a complete {self._path.suffix} file; it breaks off or is damaged after "
                f"{self._read} bytes of text ({error}): fetch it again."
            ) from error
        self._read += len(piece)
        if self._limit is not None and self._read > self._limit:
            raise DamagedFileError(
                f"{self._path}: expected it to unpack to at most {self._limit} bytes ({MOST_TIMES} times its size, or "
                "1 GiB), got more: a damaged or hostile file. If it is as it should be, unpack it and read the result."
            )
        if self._text:
            if (at := piece.find(b"\0")) >= 0:
                raise _with_nul(self._path, self._line + piece.count(b"\n", 0, at))
            self._line += piece.count(b"\n")
        buffer[: len(piece)] = piece
        return len(piece)


@contextlib.contextmanager
def open_bytes(path: Path, *, text: bool = False) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
    """Opens a file as two streams: its bytes on disk, whose position shows the progress, and its content, unpacked.

    Raises:
        ValueError: while reading, if the file is not compressed as its name says, unpacks to more than the limit, or
            has a NUL byte though it is ``text``.
        OSError: if it cannot be read.
    """
    module = MODULES.get(path.suffix.lower())
    with path.open("rb") as raw, contextlib.ExitStack() as stack:
        stream: Any = raw
        if module is not None:
            try:
                stream = stack.enter_context(importlib.import_module(module).open(raw, "rb"))
            except ModuleNotFoundError as error:
                raise ValueError(
                    f"{path}: Python {error.name} is missing: .zst needs 3.14; unpack it first."
                ) from error
        yield raw, io.BufferedReader(_Bounded(path, stream, module is not None, text), 1 << 16)


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    r"""The lines of a file with their numbers, from 1 on, without their line ends.

    Raises:
        ValueError: as ``open_bytes``, and for a line that is too long.
        OSError: if it cannot be read.

    Example:
        >>> import gzip, tempfile
        >>> path = Path(tempfile.mkdtemp()) / "two.txt.gz"
        >>> _ = path.write_bytes(gzip.compress(b"a b\nc\n"))
        >>> list(read_lines(path))
        [(1, b'a b'), (2, b'c')]
    """
    with open_bytes(path) as (_, stream):
        yield from numbered(path, stream)


def numbered(name: Path, stream: io.BufferedIOBase | IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """The lines of a stream as those of ``read_lines``, for errors of the file ``name``.

    Raises:
        ValueError: for a line that is too long; with file and line number.
    """
    for number in itertools.count(1):
        if not (line := stream.readline(LONGEST_LINE + 2)):
            return
        if len(line := line.rstrip(b"\r\n")) > LONGEST_LINE:
            raise ValueError(f"{name}:{number}: expected lines of at most {LONGEST_LINE} bytes, got a longer one.")
        yield number, line


def decode(path: Path, number: int, line: bytes) -> str:
    """A line as text.

    Raises:
        ValueError: if it is not text in UTF-8; with file and line number.
    """
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number}: expected text in UTF-8, got {error.reason}: is it binary?") from error
    if "\0" in text:
        raise _with_nul(path, number)
    return text


def _with_nul(path: Path, number: int) -> ValueError:
    return ValueError(f"{path}:{number}: expected text, got a line with a NUL byte: is it binary?")


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """As ``read_lines``, with each line decoded from UTF-8."""
    return ((number, decode(path, number, line)) for number, line in read_lines(path))


def check_read_again(path: Path) -> None:
    """Refuses what can be read once alone.

    Raises:
        ValueError: for a pipe or a device.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ValueError(f"{path}: expected a file, to be read more than once, got a pipe: write it to a file first.")


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[IO[str]]:
    """Opens a file as text in UTF-8, to be read piece by piece.

    Raises:
        ValueError: if what is read within the block is not text, or not compressed as its name says.
        OSError: if it cannot be read.
    """
    with open_bytes(path, text=True) as (_, stream):
        try:
            yield io.TextIOWrapper(stream, encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            if path.is_file():
                for _ in text_lines(path):  # which says in what line
                    pass
            raise ValueError(f"{path}: expected text in UTF-8, plain or {ENDINGS}; {error}.") from error
