"""Texts as word ids, split into parts for training, validation and testing."""

import dataclasses
import functools
import io
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int32, Int64

from candax.data.cache import cached, form_of
from candax.data.python_stdlib import each_file, library_of
from candax.data.streams import MODULES, text_lines
from candax.data.tab_separated import name_of

STDLIB = "python-stdlib"
END, UNKNOWN = "<eos>", "<unk>"
PARTS = ("train", "valid", "test")
_NAMES = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}
_ENDINGS = (".txt", ".tokens", "")
# The share of a single file, or of the standard library's files, for validation, and the same for testing.
_HELD_OUT = 0.05
# Folders of the standard library that not every installation has.
_OPTIONAL = {"test", "tests", "idlelib", "lib2to3", "config-3"}
_BUILDER_VERSION = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Text:
    """A text as ids of words.

    Attributes:
        name: what tables call it.
        words: of the training part, the most frequent first, equally frequent ones in alphabetical order.
        train: ids, one after the other, with that of ``<eos>`` after each line.
        valid: likewise.
        test: likewise.
        unknown: how many words of validation and of testing are not in training, and are read as ``<unk>``.
        notes: messages on what was replaced in the text, to be printed.
    """

    name: str
    words: tuple[str, ...]
    train: Int32[np.ndarray, " N"]
    valid: Int32[np.ndarray, " N_valid"]
    test: Int32[np.ndarray, " N_test"]
    unknown: tuple[int, int] = (0, 0)
    notes: tuple[str, ...] = ()

    @property
    def num_words(self) -> int:
        """Classes."""
        return len(self.words)

    @functools.cached_property
    def counts(self) -> Int64[np.ndarray, " num_words"]:
        """Occurrences of each word in the training part."""
        return np.bincount(self.train, minlength=self.num_words)

    @property
    def end(self) -> int:
        """The id of ``<eos>``, from which a text is read on."""
        return self.words.index(END)


def text_of(
    name: str, parts: Mapping[str, Iterable[list[str]]], *, min_count: int | None = None, source: str = ""
) -> Text:
    """Makes a text from lines of words.

    The words are those of the training part. Words that it has less than ``min_count`` times become ``<unk>``, as do
    words of the other parts that are not in it; both are counted. Where it has no rare words, ``<unk>`` may be a word
    that never occurs in it.

    Args:
        name: of the text.
        parts: lines of "train", "valid" and "test".
        min_count: see above; None: 1 where the training part has the word ``<unk>`` itself, else 2, so that the
            model learns how often unknown words come.
        source: of the text, for errors; default: the name.

    Raises:
        ValueError: for a part without words, a training part of fewer than three different words, or unknown words
            where every word is kept and none is ``<unk>``.

    Example:
        >>> text = text_of("tiny", {"train": [["a", "b"], ["a"]], "valid": [["b"]], "test": [["c"]]})
        >>> text.words, text.test.tolist(), text.unknown
        (('<eos>', 'a', '<unk>'), [2, 0], (1, 1))
    """
    source = source or name
    read: dict[str, list[str]] = {}
    for part in PARTS:
        lines = list(parts[part])
        if not any(lines):
            raise ValueError(f"{source}: expected words in the part {part}, found none.")
        read[part] = [word for line in lines for word in (*line, END)]
    counts = Counter(read["train"])
    least = min_count or (1 if UNKNOWN in counts else 2)
    rare = {word for word, count in counts.items() if count < least and word not in (END, UNKNOWN)}
    notes = []
    if rare:
        number = sum(counts.pop(word) for word in rare)
        counts[UNKNOWN] += number
        notes.append(
            f"{len(rare):,} words that come less than {least} times in the training part are read as {UNKNOWN} there: "
            f"{number:,} of {len(read['train']):,}."
        )
    if len(counts) < 3:
        raise ValueError(
            f"{source}: expected three different words or more, {END} among them, that come {least} times or more in "
            f"the training part, found {len(counts)}: give more text, or lower --min-count."
        )
    unknown = [sum(word not in counts for word in read[part]) for part in PARTS[1:]]
    if sum(unknown):
        if UNKNOWN not in counts and least == 1:
            raise ValueError(
                f"{source}: expected words of validation and test that the training part has, or {UNKNOWN} among those "
                f"to stand for others, got {sum(unknown):,} other words: set --min-count to 2 or more."
            )
        numbers = zip(PARTS[1:], unknown, strict=True)
        shares = ", ".join(f"{number:,} of {len(read[part]):,} in {part}" for part, number in numbers)
        notes.append(f"words that the training part has not are read as {UNKNOWN}, and predicted as such: {shares}.")
        counts[UNKNOWN] += 0
    words = tuple(sorted(counts, key=lambda word: (-counts[word], word)))
    id_of = {word: number for number, word in enumerate(words)}
    other = id_of.get(UNKNOWN, 0)
    ids = {part: np.fromiter((id_of.get(word, other) for word in read[part]), np.int32) for part in PARTS}
    return Text(name, words, **ids, unknown=(unknown[0], unknown[1]), notes=tuple(notes))


def load(dataset: str, *, min_count: int | None = None) -> Text:
    """Reads a text.

    Args:
        dataset: ``python-stdlib``, the source code of Python's standard library as tokens; a folder with text files
            train, valid and test (.txt, .tokens or without an ending, plain or compressed); or one text file, whose
            lines are split in order: the last twentieth is for testing, the one before for validation. Words are
            separated by white space, and each line, an empty one too, ends with the word ``<eos>``.
        min_count: see ``text_of``.

    Raises:
        ValueError: for anything else, with file and line.
        OSError: if a file cannot be read.
    """
    if dataset == STDLIB:
        return _library(min_count)
    path = Path(dataset)
    how: Any = {"min_count": min_count, "source": dataset}
    if path.is_dir():
        files = {part: _file(path, part) for part in PARTS}
        return text_of(name_of(path), {part: _lines(file) for part, file in files.items()}, **how)
    if not path.is_file():
        raise ValueError(
            f"expected --dataset to be {STDLIB}, a text file, or a folder with train.txt, valid.txt and test.txt "
            f"(plain or {', '.join(MODULES)}), got {dataset!r}."
        )
    lines = list(_lines(path))
    held_out = max(1, round(_HELD_OUT * len(lines)))
    if len(lines) < 3:
        raise ValueError(f"{path}: expected three lines or more to be parted, got {len(lines)}.")
    parts = {"train": lines[: -2 * held_out], "valid": lines[-2 * held_out : -held_out], "test": lines[-held_out:]}
    return text_of(name_of(path), parts, **how)


def in_pairs(text: Text, num_classes: int) -> Text:
    """The text as pairs of neighbouring words, hashed: a vocabulary of any size.

    The words 1 and 2 are the first pair, 3 and 4 the second; a last word alone is left out. Pairs that share a class by
    chance are predicted as one. The class 0 is ``<eos>``, which is read before the first pair and never predicted.

    Example:
        >>> text = text_of("tiny", {part: [["a", "b", "c"], ["a", "b", "c"]] for part in PARTS})
        >>> pairs = in_pairs(text, 1000)
        >>> len(pairs.train), int(pairs.train[0] == pairs.train[2]), pairs.num_words
        (4, 1, 1000)
    """

    def hashed(ids: Int32[np.ndarray, " n"]) -> Int32[np.ndarray, " half"]:
        first, second = ids[: len(ids) // 2 * 2].reshape(-1, 2).astype(np.uint64).T
        bits = (first * np.uint64(text.num_words) + second) * np.uint64(0x9E3779B97F4A7C15)
        return (1 + (bits >> np.uint64(32)) % np.uint64(num_classes - 1)).astype(np.int32)

    parts = {part: hashed(getattr(text, part)) for part in PARTS}
    names = (END, *(f"pair {number}" for number in range(1, num_classes)))
    return Text(f"{text.name}, pairs", names, **parts, unknown=text.unknown, notes=text.notes)


def _file(folder: Path, part: str) -> Path:
    wanted = {f"{stem}{ending}{packed}" for stem in _NAMES[part] for ending in _ENDINGS for packed in ("", *MODULES)}
    # WikiText's own files are wiki.train.tokens and so on.
    there = sorted(file for file in folder.iterdir() if file.name.removeprefix("wiki.") in wanted and file.is_file())
    if len(there) != 1:
        found = ", ".join(file.name for file in there) or "none"
        raise ValueError(f"expected one text file {part}.txt (plain or {', '.join(MODULES)}) in {folder}, got {found}.")
    return there[0]


def _lines(path: Path) -> Iterator[list[str]]:
    return (line.split() for _, line in text_lines(path))


def _library(min_count: int | None) -> Text:
    """The standard library's source: of every twenty files one is for testing and one for validation."""
    library = library_of(without=_OPTIONAL)
    key = {"language": _BUILDER_VERSION, "min_count": min_count, **library.key}

    def build() -> Text:
        parts: dict[str, list[list[str]]] = {part: [] for part in PARTS}
        one_in = round(1 / _HELD_OUT)
        for number, (_, lines) in enumerate(each_file(library.names, lambda name: _code(library.root / name))):
            part = {one_in // 2: "valid", one_in - 1: "test"}.get(number % one_in, "train")
            parts[part] += lines or []
        return text_of(STDLIB, parts, min_count=min_count)

    return cached(f"language-{STDLIB}", f"{library.root} {min_count}", key, build, form_of(Text))


def _code(path: Path) -> list[list[str]]:
    """The tokens of each line of code, without comments; every string is the same word, as is every number."""
    lines: list[list[str]] = [[]]
    for token in tokenize.tokenize(io.BytesIO(path.read_bytes()).readline):
        if token.type == tokenize.NEWLINE:
            lines.append([])
        elif token.type in (tokenize.NAME, tokenize.OP):
            lines[-1].append(token.string)
        elif token.type in _OTHERS:
            lines[-1].append(_OTHERS[token.type])
    return lines[:-1]


_OTHERS = {
    tokenize.STRING: "<text>", tokenize.NUMBER: "<number>", tokenize.INDENT: "<indent>", tokenize.DEDENT: "<dedent>",
}  # fmt: skip
