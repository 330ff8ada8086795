"""Texts of any length as word ids in a memory-mapped file: read once, counted and pruned on the way, then cached."""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np
from jaxtyping import Int32, Int64

from candax.checks import checked
from candax.data.cache import CACHE_VARIABLE, cache_folder, cached, form_of
from candax.data.corpus import sentence_of_words
from candax.data.progress import progress_bar
from candax.data.python_stdlib import library_of
from candax.data.streams import LONGEST_LINE, MODULES, check_read_again, open_text
from candax.data.text import python_sentences, shown_paths
from candax.data.tokens import one_spelling, words_in
from candax.files import naming

_CHARACTERS = 1 << 20
_TOKENS = 1 << 20
_GONE = -2


@dataclasses.dataclass(frozen=True, eq=False)
class Words:
    """A text as word ids.

    Args:
        name: what tables and pictures call it.
        words: one per word id, the most frequent first.
        counts: occurrences of each word.
        ids: the ids of all words in the text, in its order, with -1 behind each sentence; often a memory-mapped file.
        digest: of the words and ids; equal for equal texts.

    Example:
        >>> text = words_of("tiny", [["b", "a", "b"], ["b"]], min_count=1)
        >>> text.words, text.counts.tolist(), text.ids.tolist()
        (('b', 'a'), [3, 1], [0, 1, 0, -1, 0, -1])
    """

    name: str
    words: tuple[str, ...]
    counts: Int64[np.ndarray, "num_words"]
    ids: Int32[np.ndarray, " tokens"]
    digest: str

    @property
    def num_words(self) -> int:
        """The number of different words."""
        return len(self.words)

    @property
    def total(self) -> int:
        """The number of all words, each counted as often as it occurs."""
        return int(self.counts.sum())

    def sentences(self, start: int = 0, stop: int | None = None) -> Iterator[list[str]]:
        """The sentences of the words number ``start`` to ``stop - 1`` (None: the last), the outer ones cut there.

        Example:
            >>> text = words_of("tiny", [["b", "a", "b"], ["b"]], min_count=1)
            >>> list(text.sentences(1)), list(text.sentences(0, 2))
            ([['a', 'b'], ['b']], [['b', 'a']])
        """
        number, sentence = 0, list[str]()
        for first in range(0, len(self.ids), _TOKENS):
            for i in self.ids[first : first + _TOKENS].tolist():
                if i < 0 or number == stop:
                    if sentence:
                        yield sentence
                    if number == stop:
                        return
                    sentence = []
                    continue
                if number >= start:
                    sentence.append(self.words[i])
                number += 1
        if sentence:
            yield sentence


@checked
def words_of(
    name: str,
    sentences: Iterable[Sequence[str]],
    *,
    min_count: int = 5,
    max_words: int = 10_000_000,
    file: IO[bytes] | None = None,
) -> Words:
    """Turns sentences into word ids, reading them only once.

    Args:
        name: of the text.
        sentences: the words of each sentence; they may come from a generator and need not fit into memory.
        min_count: words that occur less often are left out, as if they were not in the text.
        max_words: the most words held while counting; beyond that, the rarest so far are forgotten, and their counts
            with them (as in word2vec: the least count that survives rises by one each time).
        file: the file for the ids, opened for reading and writing; None: a temporary file.

    Returns:
        The text; words are ranked by count, equally frequent ones in alphabetical order.

    Raises:
        ValueError: if fewer than two words are left, or a number is out of range.

    Example:
        >>> words_of("tiny", [["b", "a", "b"], ["b"]], min_count=2).words  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: tiny: expected two different words or more that occur at least 2 times, found 1 among 4 words...
    """
    if min_count < 1 or max_words < 2:
        raise ValueError(f"expected min_count >= 1 and max_words >= 2, got {min_count} and {max_words}.")
    with (
        tempfile.TemporaryFile() if file is None else contextlib.nullcontext(file) as opened,
        naming(Path(tempfile.gettempdir())),
    ):
        first_ids, counts, length = _number(sentences, max_words, opened)
        kept = [word for word, i in first_ids.items() if counts[i] >= min_count]
        kept.sort(key=lambda word: (-counts[first_ids[word]], word))
        if len(kept) < 2:
            raise ValueError(
                f"{name}: expected two different words or more that occur at least {min_count} times, found "
                f"{len(kept)} among {int(counts.sum())} words. Give more text, or lower the minimum count."
            )
        old = np.fromiter((first_ids[word] for word in kept), np.int64, len(kept))
        # The last entry is for -1, the end of a sentence, which stays -1.
        new = np.full(len(counts) + 1, _GONE, np.int32)
        new[old], new[-1] = np.arange(len(kept)), -1
        length = _renumber(opened, length, new)
        digest = hashlib.blake2b("\0".join(kept).encode(), digest_size=16)
        for start in range(0, length, _TOKENS):
            digest.update(_read(opened, start, min(_TOKENS, length - start)))
        # Mapped, so that the file may be closed.
        ids = np.memmap(opened, np.int32, "r", shape=(length,))
    return Words(name, tuple(kept), counts[old], ids, digest.hexdigest())


@checked
def text_words(paths: Iterable[str | os.PathLike[str]] = (), *, min_count: int = 5, keep_case: bool = False) -> Words:
    """Words of text files, or of Python's standard library: read the first time, later taken from the cache.

    A word is a run of letters, digits, underscores and combining marks, apostrophes inside it included, in Unicode's
    normal form C; a sentence ends where a line does. In the standard library, words are identifiers and sentences are
    paragraphs of code, see ``python_corpus``. Files are read piece by piece, and the ids stay on disk (4 bytes per
    word).

    Args:
        paths: files in UTF-8, plain or .gz, .bz2, .xz, .zst; none: the standard library.
        min_count: words that occur less often are left out.
        keep_case: whether capitals differ from small letters in files; in the standard library they always do.

    Returns:
        The text.

    Raises:
        ValueError: if a file is not text, or fewer than two words are left.
        OSError: if a file cannot be read.

    Example:
        >>> from unittest import mock
        >>> with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CANDAX_CACHE=folder):
        ...     path = Path(folder, "cats.txt")
        ...     _ = path.write_text("The cat sat: the cat.")
        ...     text = text_words([path], min_count=1)
        >>> text.words, text.ids.tolist()
        (('cat', 'the', 'sat'), [1, 0, 2, 1, 0, -1])
    """
    given = [Path(path) for path in paths]
    for path in given:
        check_read_again(path)
    files = [path.resolve() for path in given]
    name = files[0].name.split(".")[0] if files else "python-stdlib"
    key = {
        "words": 4,
        "files": [(path.stat().st_size, path.stat().st_mtime_ns) for path in files],
        "min_count": min_count,
        "keep_case": keep_case,
    }
    library = None if files else library_of()
    key |= {} if library is None else library.key
    identity = json.dumps([*map(str, files), min_count, keep_case]) if library is None else str(library.root)

    def build() -> Words:
        try:
            file: IO[bytes] = tempfile.TemporaryFile(dir=cache_folder())  # noqa: SIM115  # the block below closes it
        except OSError:
            file = tempfile.TemporaryFile()  # noqa: SIM115
        with file:
            try:
                sentences = _sentences(files, keep_case) if files else python_sentences()
                # Errors name the files, tables only the first one's stem.
                found = words_of(shown_paths(files) or name, sentences, min_count=min_count, file=file)
                return dataclasses.replace(found, name=name)
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                    raise
                raise OSError(
                    error.errno,
                    f"no space for the word ids of {name}, 4 bytes each, of which {file.tell()} bytes were written. "
                    f"Free space, or set {CACHE_VARIABLE} to a folder that has it",
                    str(cache_folder()),
                ) from error

    return cached(f"words-{name}", identity, key, build, form_of(Words, mapped=True))


def _sentences(paths: Sequence[Path], keep_case: bool) -> Iterator[list[str]]:
    """The words of every line; a line of more than a million characters is cut between words."""
    total = sum(path.stat().st_size for path in paths)
    before = 0
    with progress_bar("reading the text", max(1, total)) as done:
        for path in paths:
            # How many bytes of a compressed file a character takes is not known: a third is assumed.
            share = 1.0 if path.suffix.lower() not in MODULES else 1 / 3
            read = 0
            with open_text(path) as file:
                rest = ""
                while piece := file.read(_CHARACTERS):
                    read += len(piece)
                    done(before + min(int(read * share), path.stat().st_size))
                    text, _, rest = (rest + (piece if keep_case else piece.lower())).rpartition("\n")
                    yield from filter(None, _words(text))
                    if len(rest) > _CHARACTERS:
                        cut = max(rest.rfind(" "), rest.rfind("\t"))
                        if cut > 0:
                            yield from _words(rest[:cut])
                            rest = rest[cut:]
                        elif len(rest) > LONGEST_LINE:
                            raise ValueError(
                                f"{path}: expected white space at least every {LONGEST_LINE} characters, found none: "
                                "is it text?"
                            )
                yield from filter(None, _words(rest))
            before += path.stat().st_size


def _words(text: str) -> Iterator[list[str]]:
    """The words of each line."""
    text = one_spelling(text)
    return map(words_in(text), text.split("\n"))


def _number(
    sentences: Iterable[Sequence[str]], max_words: int, file: IO[bytes]
) -> tuple[dict[str, int], Int64[np.ndarray, " n"], int]:
    """Writes ids, given out in the order of first occurrence; returns the ids of words, the counts of ids, the length.

    A word that was forgotten gets a new id when it occurs again, and is missing in the result if it does not.
    """
    ids: dict[str, int] = {}
    counts = np.zeros(1 << 16, np.int64)
    next_id, least, length = 0, 1, 0
    buffer: list[int] = []

    def flush() -> None:
        nonlocal counts, length
        array = np.array(buffer, np.int32)
        file.write(array.tobytes())
        while len(counts) < next_id:
            counts = np.concatenate([counts, np.zeros_like(counts)])
        counts += np.bincount(array[array >= 0], minlength=len(counts))
        length += len(buffer)
        buffer.clear()

    for sentence in sentences:
        for word in sentence_of_words(sentence):
            i = ids.get(word)
            if i is None:
                i = ids[word] = next_id
                next_id += 1
            buffer.append(i)
        buffer.append(-1)
        if len(buffer) >= _TOKENS:
            flush()
        if len(ids) > max_words:
            flush()
            while len(ids) > max_words:
                least += 1
                ids = {word: i for word, i in ids.items() if counts[i] >= least}
    flush()
    return ids, counts[:next_id], length


def _renumber(file: IO[bytes], length: int, new: Int32[np.ndarray, " n"]) -> int:
    """Replaces ids by new ones, in place, without dropped words and empty sentences; returns the new length."""
    written, ended = 0, True
    for start in range(0, length, _TOKENS):
        ids = new[np.frombuffer(_read(file, start, min(_TOKENS, length - start)), np.int32)]
        ids = ids[ids != _GONE]
        # An end of a sentence is left out behind another end and at the start.
        before = np.concatenate([[ended], ids[:-1] == -1])[: len(ids)]
        ids = ids[~((ids == -1) & before)]
        if len(ids):
            ended = bool(ids[-1] == -1)
            file.seek(written * 4)
            file.write(ids.tobytes())
            written += len(ids)
    file.truncate(written * 4)
    file.flush()
    return written


def _read(file: IO[bytes], start: int, number: int) -> bytes:
    file.seek(start * 4)
    return file.read(number * 4)
