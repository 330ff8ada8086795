"""Words, one a line, and the words whose vectors are nearest."""

from collections import Counter
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from candax.base import Classes
from candax.data import WordVectors
from candax.recipes.common.search import Search
from candax.recipes.predict.lines import Answer, Source, in_batches


def searching(found: WordVectors) -> Search:
    """Among all words, exactly."""
    return Search(classes_of(found))


def classes_of(found: WordVectors) -> Classes:
    """The vectors at length 1, as classes."""
    return Classes(jnp.asarray(found.units))


def answers(
    found: WordVectors, source: Source, k: int, notes: Counter[str], *, search: Search | None = None
) -> Iterator[list[Answer]]:
    """The words of largest cosine with the word of each line, without itself; words without a vector have none.

    Args:
        found: of the run.
        source: of lines.
        k: words for each.
        notes: where unknown words are counted.
        search: among ``classes_of(found)``; None: exactly.

    Raises:
        ValueError: with file and line, for lines of several words.
    """
    search = searching(found) if search is None else search
    for batch in in_batches(_words(source)):
        at = [found.find(word) for word in batch]
        if unknown := sum(place is None for place in at):
            notes["words without a vector, left without an answer"] += unknown
        known = np.array([place for place in at if place is not None], np.int64)
        best = search.best(found.units[known].astype(np.float32), k, known[:, None])
        rows = iter(zip(best.ids.tolist(), best.scores.tolist(), strict=True))
        here = []
        for word, place in zip(batch, at, strict=True):
            ids, scores = ([], []) if place is None else next(rows)
            pairs = [(found.words[i], score) for i, score in zip(ids, scores, strict=True) if i >= 0]
            here.append(Answer(word, [name for name, _ in pairs], [score for _, score in pairs]))
        yield here


def _words(source: Source) -> Iterator[str]:
    for number, text in source.texts():
        word = text.strip()
        if len(word.split()) > 1:
            raise source.wrong(number, "one word a line", text)
        yield word
