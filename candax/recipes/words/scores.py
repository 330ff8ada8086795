"""How well word vectors do: rank correlation with judgements of similarity, and analogies answered."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int64

from candax.checks import checked
from candax.data import WordVectors
from candax.data.streams import text_lines
from candax.data.times import number_of

_QUESTIONS_AT_A_TIME = 512


class Similarity(NamedTuple):
    """What vectors and people say about the same pairs of words.

    Attributes:
        spearman: rank correlation of cosines and judgements; NaN with fewer than two pairs.
        cosines: of the pairs whose words have vectors.
        judgements: of the same pairs.
        skipped: pairs left out because a word has no vector.
        passed_over: lines of the file, headings and others, that are no pair with a finite number.
    """

    spearman: float
    cosines: Float[np.ndarray, " pairs"]
    judgements: Float[np.ndarray, " pairs"]
    skipped: int
    passed_over: int = 0


class Analogies(NamedTuple):
    """Answers to "a is to b as c is to ...".

    Attributes:
        right: whether the answer was right, for the questions whose four words are in the restricted vocabulary, by
            section.
        skipped: how many others there are, by section.
        passed_over: lines of the file that are neither a question nor the name of a section.
    """

    right: dict[str, Bool[np.ndarray, "asked"]]
    skipped: dict[str, int]
    passed_over: int = 0

    @property
    def asked(self) -> int:
        """Questions asked."""
        return sum(map(len, self.right.values()))

    @property
    def accuracy(self) -> float:
        """Share of right answers among all questions asked; NaN if none was."""
        return sum(int(right.sum()) for right in self.right.values()) / self.asked if self.asked else float("nan")


@checked
def word_similarity(vectors: WordVectors, path: str | os.PathLike[str]) -> Similarity:
    """Spearman's rank correlation of cosines with the judgements of a file.

    Args:
        vectors: to be measured.
        path: a file of lines ``word word number``, separated by tabs, spaces, commas or semicolons; but for spaces
            others may stand before the number, as in SimLex-999 and SimVerb (``word word POS number ...``). Other
            lines are taken for headings, and counted. May be compressed.

    Returns:
        See ``Similarity``. A word counts as it is written, or else in small letters.

    Raises:
        ValueError: if the file has no such line.
        OSError: if it cannot be read.
    """
    pairs, passed_over = read_similarity(path)
    found = [(vectors.find(a), vectors.find(b), judgement) for a, b, judgement in pairs]
    known = [(a, b, judgement) for a, b, judgement in found if a is not None and b is not None]
    one, other = (np.array([pair[i] for pair in known], np.int64) for i in (0, 1))
    judgements = np.array([judgement for *_, judgement in known])
    cosines = np.sum(vectors.units[one] * vectors.units[other], axis=1).astype(np.float64)
    return Similarity(spearman(cosines, judgements), cosines, judgements, len(pairs) - len(known), passed_over)


def read_similarity(path: str | os.PathLike[str]) -> tuple[list[tuple[str, str, float]], int]:
    """The pairs of a file with their judgements, and the number of its other lines; see ``word_similarity``."""
    lines = [_pair(line) for line in _lines(path)]
    pairs = [pair for pair in lines if pair is not None]
    if not pairs:
        raise ValueError(f"{path}: expected lines of two words and a number, found none.")
    return pairs, len(lines) - len(pairs)


def spearman(a: Float[np.ndarray, " n"], b: Float[np.ndarray, " n"]) -> float:
    """Spearman's rank correlation; NaN with fewer than two pairs, or where one side is constant.

    Example:
        >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([10.0, 40.0, 20.0]))
        0.5
    """
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    import scipy.stats

    return float(scipy.stats.spearmanr(a, b).statistic)


@checked
def word_analogies(vectors: WordVectors, path: str | os.PathLike[str], *, restrict: int = 30_000) -> Analogies:
    """Answers analogies by 3CosAdd: the word of largest cosine with b - a + c, other than these three.

    Args:
        vectors: to be measured; the most frequent words first.
        path: a file of lines of four words, in sections that a line ``: name`` opens (word2vec's questions-words.txt);
            other lines are counted. May be compressed.
        restrict: only this many of the first words can be asked for or be answers.

    Returns:
        See ``Analogies``. A word counts as it is written, or else in small letters.

    Raises:
        ValueError: if the file has no question.
        OSError: if it cannot be read.

    Source: Mikolov, Yih, Zweig, Linguistic Regularities in Continuous Space Word Representations (2013).
    """
    if restrict < 4:
        raise ValueError(f"expected to restrict the vocabulary to 4 words or more, got {restrict}.")
    sections, passed_over = read_analogies(path)
    result = Analogies({}, {}, passed_over)
    units = vectors.units[:restrict]
    for name, questions in sections.items():
        found = [[vectors.find(word) for word in question] for question in questions]
        known = np.array([q for q in found if all(i is not None and i < restrict for i in q)], np.int64).reshape(-1, 4)
        parts = [known[i : i + _QUESTIONS_AT_A_TIME] for i in range(0, len(known), _QUESTIONS_AT_A_TIME)]
        result.right[name] = np.concatenate([np.zeros(0, bool), *(_is_right(units, part) for part in parts)])
        result.skipped[name] = len(questions) - len(known)
    return result


def read_analogies(path: str | os.PathLike[str]) -> tuple[dict[str, list[list[str]]], int]:
    """The questions of a file by section, and the number of lines that are none; see ``word_analogies``."""
    sections: dict[str, list[list[str]]] = {}
    name, passed_over = "", 0
    for line in _lines(path):
        if line.startswith(":"):
            name = line[1:].strip()
        elif len(words := line.split()) == 4:
            sections.setdefault(name, []).append(words)
        else:
            passed_over += 1
    if not sections:
        raise ValueError(f"{path}: expected questions, lines of four words; found none.")
    return sections, passed_over


def check_names(paths: Sequence[Path]) -> None:
    """Raises ValueError where two files have the same name, by which scores are told apart."""
    names = [path.stem for path in paths]
    same = [str(path) for path, name in zip(paths, names, strict=True) if names.count(name) > 1]
    if same:
        raise ValueError(f"expected files of different names, by which scores are told apart; got {', '.join(same)}.")


def file_scores(
    vectors: WordVectors, similarity: Sequence[Path], analogies: Sequence[Path], restrict: int = 30_000
) -> dict[str, Any]:
    """Scores on files of similarity and of analogies, as JSON values by the files' names.

    Returns:
        Under the name of each file ``spearman``, or ``accuracy`` and the ``sections``; what was asked and skipped; and
        how many lines were passed over.

    Raises:
        ValueError: for files of the same name.
    """
    check_names([*similarity, *analogies])
    scores: dict[str, Any] = {}
    for path in similarity:
        found = word_similarity(vectors, path)
        number = None if np.isnan(found.spearman) else found.spearman
        counts = {"pairs": len(found.cosines), "skipped": found.skipped, "passed_over": found.passed_over}
        scores[path.stem] = {"spearman": number, **counts}
    for path in analogies:
        answers = word_analogies(vectors, path, restrict=restrict)
        scores[path.stem] = {
            "accuracy": answers.accuracy if answers.asked else None,
            "asked": answers.asked,
            "skipped": sum(answers.skipped.values()),
            "passed_over": answers.passed_over,
            "sections": {
                name: {"right": int(right.sum()), "asked": len(right), "skipped": answers.skipped[name]}
                for name, right in answers.right.items()
            },
        }
    return scores


def _is_right(units: Float[np.ndarray, "n dim"], questions: Int64[np.ndarray, "Q 4"]) -> Bool[np.ndarray, " Q"]:
    a, b, c, wanted = questions.T
    scores = (units[b] - units[a] + units[c]) @ units.T
    np.put_along_axis(scores, questions[:, :3], -np.inf, axis=1)
    return np.argmax(scores, axis=1) == wanted


def _pair(line: str) -> tuple[str, str, float] | None:
    for separator in ("\t", ";", ",", None):
        parts: Sequence[str] = [part.strip() for part in line.split(separator)]
        if len(parts) < 3 or not parts[0] or not parts[1]:
            continue
        # In a heading with spaces, such as "Word 1 Word 2 Human", a number further on says nothing.
        numbers = map(_number, parts[2:] if separator else parts[2:3])
        number = next((number for number in numbers if number is not None), None)
        if number is not None and math.isfinite(number):
            return parts[0], parts[1], number
    return None


def _number(text: str) -> float | None:
    try:
        return number_of(text)
    except ValueError:
        return None


def _lines(path: str | os.PathLike[str]) -> list[str]:
    return [stripped for _, line in text_lines(Path(path)) if (stripped := line.strip())]
