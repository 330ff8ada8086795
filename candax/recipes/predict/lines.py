"""Lines in and out: what `candax predict` reads piece by piece, and what it writes as it goes."""

import contextlib
import io
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Float, Integer

from candax.data.streams import decode, numbered, read_lines
from candax.files import naming, replacing
from candax.recipes.common.search import AT_A_TIME

Format: TypeAlias = Literal["tsv", "jsonl"]
_STDIN = "-"
_BREAKS = re.compile(r"[\t\r\n]")
T = TypeVar("T")


class Answer(NamedTuple):
    """The answers to an input: names and scores, best first."""

    asked: str | int
    names: Sequence[str | int]
    scores: Sequence[float]


def answered(
    asked: Iterable[str | int],
    ids: Integer[np.ndarray, "n k"],
    scores: Float[np.ndarray, "n k"],
    names: Sequence[Any],
    known: Iterable[bool] | None = None,
) -> list[Answer]:
    """Answers of a search, whose ids are -1 where nothing was found.

    Args:
        asked: the inputs.
        ids: best first.
        scores: of the same.
        names: of the ids.
        known: which inputs were searched for and have a row; the others have no answer. None: all of them.
    """
    rows = zip(ids.tolist(), scores.tolist(), strict=True)
    found = []
    for one, is_known in zip(asked, itertools.repeat(True) if known is None else known, strict=known is not None):
        of, its_scores = next(rows) if is_known else ([], [])
        pairs = [(names[i], score) for i, score in zip(of, its_scores, strict=True) if i >= 0]
        found.append(Answer(one, [name for name, _ in pairs], [score for _, score in pairs]))
    return found


class Source(NamedTuple):
    """Lines with their numbers, from 1 on, and the name of where they come from."""

    path: Path
    lines: Iterator[tuple[int, bytes]]

    def texts(self) -> Iterator[tuple[int, str]]:
        """The lines, decoded from UTF-8; blank lines are skipped.

        Raises:
            ValueError: if a line is not text in UTF-8, or all are blank.
        """
        found = False
        for number, line in self.lines:
            text = decode(self.path, number, line)
            if text.strip():
                found = True
                yield number, text
        if not found:
            raise self.empty()

    def empty(self) -> ValueError:
        """What to raise where there is no line."""
        return ValueError(f"{self.path}: expected lines to answer, got an empty input.")

    def wrong(self, number: int, expected: str, line: str) -> ValueError:
        """What to raise for a line of another kind."""
        shown = line if len(line) <= 60 else line[:57] + "..."
        return ValueError(f"{self.path}:{number}: expected {expected}, got {shown!r}.")


def source(path: str) -> Source:
    """The lines of a file, plain or compressed, or of standard input (``-``).

    Raises:
        ValueError: while reading, see ``candax.data.streams``.
        OSError: if it cannot be read.
    """
    if path != _STDIN:
        if Path(path).is_dir():
            raise ValueError(f"{path}: expected a file of inputs, got a folder.")
        if not Path(path).exists():
            raise ValueError(f"expected a file of inputs, or - for standard input, got {path}, which does not exist.")
        return Source(Path(path), read_lines(Path(path)))
    if sys.stdin is None:
        raise ValueError("expected lines to answer on standard input, which is closed.")
    return Source(name := Path("standard input"), numbered(name, sys.stdin.buffer))


def in_batches(items: Iterable[T]) -> Iterator[list[T]]:
    """Lists of as many items as are answered at a time: memory does not grow with the number of all.

    Example:
        >>> [len(batch) for batch in in_batches(range(1500))]
        [1024, 476]
    """
    batch: list[T] = []
    for item in items:
        batch.append(item)
        if len(batch) == AT_A_TIME:
            yield batch
            batch = []
    if batch:
        yield batch


def as_tsv(answer: Answer) -> str:
    r"""Lines of input, rank, name and score, separated by tabs.

    Example:
        >>> as_tsv(Answer("ann", ["tea", "jam"], [0.5, 0.25]))
        'ann\t1\ttea\t0.5\nann\t2\tjam\t0.25\n'
    """
    named = [(answer.asked, name) for name in answer.names]
    for pair in named:
        for text in pair:
            if isinstance(text, str) and _BREAKS.search(text):
                raise ValueError(
                    f"expected names without tabs and line ends for --format tsv, got {text!r}: use jsonl."
                )
    rows = zip(named, answer.scores, strict=True)
    return "".join(f"{asked}\t{rank}\t{name}\t{score:.6g}\n" for rank, ((asked, name), score) in enumerate(rows, 1))


def as_json(answer: Answer) -> str:
    """One JSON object per line.

    Example:
        >>> print(as_json(Answer("ann", ["tea", "jam"], [0.5, 0.25])), end="")
        {"input": "ann", "names": ["tea", "jam"], "scores": [0.5, 0.25]}
    """
    scores = [float(f"{score:.6g}") for score in answer.scores]
    found: dict[str, Any] = {"input": answer.asked, "names": list(answer.names), "scores": scores}
    return json.dumps(found, ensure_ascii=False) + "\n"


FORMATS: dict[Format, Callable[[Answer], str]] = {"tsv": as_tsv, "jsonl": as_json}


@contextlib.contextmanager
def writing(out: Path | None) -> Iterator[Callable[[str], object]]:
    """Gives a function that writes: to standard output, or to a file, which is replaced only when all is written.

    Raises:
        OSError: if it cannot be written, such as BrokenPipeError where nobody reads standard output any more.
        ValueError: for a folder; for a standard output that is closed.
    """
    if out is None:
        if sys.stdout is None:
            raise ValueError("expected standard output to write to, which is closed: give --out a file.")
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # as in files, whatever the locale
        with naming(Path("standard output")):
            yield sys.stdout.write
            sys.stdout.flush()
        return
    if out.is_dir():
        raise ValueError(f"expected --out to be a file to write, got the folder {out}.")
    with replacing(out) as file:
        yield lambda text: file.write(text.encode())
