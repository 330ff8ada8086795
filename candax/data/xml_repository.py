"""Data sets of the Extreme Classification Repository (http://manikvarma.org/downloads/XC/XMLRepository.html)."""

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from candax.checks import checked, warn
from candax.data.cache import cached
from candax.data.examples import Dataset, Examples, from_counts
from candax.data.progress import progress_bar
from candax.data.streams import MODULES, DamagedFileError, most_bytes, numbered, open_bytes, read_lines
from candax.data.xml_format import Block, Header, parse_block, parse_header

READER_VERSION = 1
_WORDS = {"train": {"train", "trn"}, "test": {"test", "tst"}}
_CHUNK_BYTES = 1 << 22


class Sources(NamedTuple):
    """The files of one data set; the names are optional."""

    train: Path
    test: Path
    features: Path | None
    labels: Path | None


@checked
def xml_repository(folder: str | os.PathLike[str]) -> Dataset:
    r"""Reads a folder with a training and a test file in the repository's text format.

    The files are ``train.txt`` and ``test.txt``, or have ``train`` or ``trn``, ``test`` or ``tst`` as a word of their
    names (``eurlex_train.txt``, ``trn.txt``), plain or compressed (.gz, .bz2, .xz, .zst). Names are taken from
    ``features.txt`` and ``labels.txt`` where these have one line per id, in UTF-8. The first reading parses text; later
    ones take the arrays from the cache until a file changes.

    Args:
        folder: The folder.

    Returns:
        The data set, named after the folder.

    Raises:
        ValueError: If a file is missing, or more than one could be meant, or a line is faulty; the latter with file
            and line number.

    Example:
        >>> import tempfile
        >>> from unittest import mock
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     for name in ("train.txt", "test.txt"):
        ...         _ = Path(folder, name).write_text("2 5 3\n2,0 4:0.5 1:2\n 3:1\n")
        ...     dataset = xml_repository(folder)
        >>> dataset.train.labels.toarray().astype(int)
        array([[1, 0, 1],
               [0, 0, 0]])
    """
    path = Path(folder).resolve()
    sources = find_sources(path)
    key = {"reader": READER_VERSION, "files": [_fingerprint(source) for source in sources if source is not None]}
    # A folder may have any name, a cache file may not.
    name = re.sub(r"[^A-Za-z0-9._-]", "_", path.name)
    return cached(f"xml-{name}", str(path), key, lambda: _read(path.name, sources))


def find_sources(folder: Path) -> Sources:
    """Finds the files of a data set in its folder.

    Raises:
        ValueError: If not exactly one training and one test file is found.
    """
    if not folder.is_dir():
        raise ValueError(f"expected a folder with a training and a test file; there is no folder {folder}")
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    texts = [name for name in names if _stem(name) is not None]
    split: dict[str, Path] = {}
    for which, words in _WORDS.items():
        candidates = [name for name in texts if words & set(re.split(r"[-_.]", _stem(name) or ""))]
        if len(candidates) > 1:
            # No companion of a data set (filter lists, matrices of features alone) starts with three numbers.
            candidates = [name for name in candidates if _has_header(folder / name)] or candidates
        if len(candidates) != 1:
            found = ", ".join(candidates or names) or "no files"
            raise ValueError(
                f"expected one {which} file in {folder}, named {which}.txt or with one of the words "
                f"{', '.join(sorted(words))} in its name, plain or .gz, .bz2, .xz, .zst; found "
                f"{len(candidates)}: {found}. Keep each data set in a folder of its own."
            )
        split[which] = folder / candidates[0]
    if split["train"] == split["test"]:
        raise ValueError(f"expected a training and a test file in {folder}; {split['train'].name} could be either")

    def names_of(what: str) -> Path | None:
        return next((folder / name for name in texts if _stem(name) == what), None)

    return Sources(split["train"], split["test"], names_of("features"), names_of("labels"))


def read_examples(path: Path, done: Callable[[int], None] = lambda _: None) -> Examples:
    """Reads one file; ``done`` is called with the number of (compressed) bytes read so far.

    Raises:
        ValueError: At the first fault, with file and line number.
    """
    blocks: list[Block] = []
    number = 0
    with open_bytes(path) as (raw, stream):
        lines = numbered(path, stream)
        try:
            header = _header(next(lines, (1, b""))[1], path)
            # An example takes at least one byte: the end of its line.
            if header.points > (most := most_bytes(path)):
                raise ValueError(
                    f"{path}:1: expected a header of at most as many examples as the file can have bytes, {most}; got "
                    f"{header.points}"
                )
            number = 1
            for piece in _pieces(line for _, line in itertools.islice(lines, header.points)):
                blocks.append(parse_block(b"\n".join([*piece, b""]), header, str(path), number + 1))
                number += len(piece)
                done(raw.tell())
            for more, line in lines:
                if line.strip():
                    raise ValueError(
                        f"{path}:{more}: expected {header.points} examples, as the header states; got more"
                    )
        except DamagedFileError as error:
            raise ValueError(f"{path}:{number + 1}: damaged at or after this line: {error}") from error
    if number <= header.points:
        raise ValueError(
            f"{path}:{number + 1}: expected {header.points} examples, as the header states; the file ends after "
            f"{number - 1}"
        )
    return _join(blocks, header)


def _read(name: str, sources: Sources) -> Dataset:
    train_size, test_size = sources.train.stat().st_size, sources.test.stat().st_size
    with progress_bar(f"reading {name}", train_size + test_size) as done:
        train = read_examples(sources.train, done)
        test = read_examples(sources.test, lambda size: done(train_size + size))
    for what in ("features", "classes"):
        sizes = getattr(train, f"num_{what}"), getattr(test, f"num_{what}")
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"expected the same number of {what} in both headers; got {sizes[0]} in {sources.train}:1 and "
                f"{sizes[1]} in {sources.test}:1"
            )
    return Dataset(
        name, train, test, _names(sources.features, train.num_features), _names(sources.labels, train.num_classes)
    )


def _names(path: Path | None, size: int) -> tuple[str, ...] | None:
    if path is None:
        return None
    with open_bytes(path) as (_, stream):
        content = stream.read()
    try:
        lines = content.decode("utf-8-sig").removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        warn(f"{path} is not used: expected text in UTF-8; {error}")
        return None
    if len(lines) != size:
        warn(f"{path} is not used: expected {size} names, one per line; got {len(lines)}")
        return None
    return tuple(line.removesuffix("\r") for line in lines)


def _stem(name: str) -> str | None:
    """The name in small letters, without .txt and the ending of compression; None if it is not a .txt file."""
    base, extension = os.path.splitext(name.lower())
    base, extension = os.path.splitext(base) if extension in MODULES else (base, extension)
    return base if extension == ".txt" else None


def _header(line: bytes, path: Path) -> Header:
    try:
        return parse_header(line)
    except ValueError as error:
        raise ValueError(f"{path}:1: {error}") from None


def _has_header(path: Path) -> bool:
    try:
        parse_header(next(read_lines(path))[1])
    except (ValueError, OSError, StopIteration):
        return False
    return True


def _pieces(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines in lists of some megabytes."""
    piece, size = list[bytes](), 0
    for line in lines:
        piece.append(line)
        size += len(line) + 1
        if size >= _CHUNK_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _join(blocks: list[Block], header: Header) -> Examples:
    def join(field: str, dtype: type[np.generic]) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype=dtype), *(getattr(block, field) for block in blocks)])

    values, feature_ids = join("feature_values", np.float32), join("feature_ids", np.int32)
    label_ids = join("label_ids", np.int32)
    return Examples(
        from_counts(values, feature_ids, join("feature_counts", np.int64), header.features),
        from_counts(np.ones(len(label_ids), dtype=bool), label_ids, join("label_counts", np.int64), header.labels),
    )


def _fingerprint(path: Path) -> dict[str, object]:
    stat = path.stat()
    return {"path": str(path), "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
