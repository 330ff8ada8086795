"""Words, one per line, and the words whose vectors are nearest."""

from collections import Counter
from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from candax.base import Classes
from candax.data import WordVectors
from candax.recipes.common.search import Search
from candax.recipes.predict.lines import Answer, Source, answered, in_batches


def classes_of(found: WordVectors) -> Classes:
    """The vectors at length 1, as classes."""
    return Classes(jnp.asarray(found.units))


def answers(
    found: WordVectors, source: Source, k: int, notes: Counter[str], *, search: Search | None = None
) -> Iterator[list[Answer]]:
    """The words of largest cosine with the word of each line, without itself; a word without a vector gets no answer.

    Raises:
        ValueError: with file and line, for lines of several words.
    """
    search = Search(classes_of(found)) if search is None else search
    for batch in in_batches(_words(source)):
        at = [found.find(word) for word in batch]
        if unknown := sum(place is None for place in at):
            notes["words without a vector, left without an answer"] += unknown
        known = np.array([place for place in at if place is not None], np.int64)
        best = search.best(found.units[known].astype(np.float32), k, known[:, None])
        yield answered(batch, best.ids, best.scores, found.words, [place is not None for place in at])


def _words(source: Source) -> Iterator[str]:
    for number, text in source.texts():
        word = text.strip()
        if len(word.split()) > 1:
            raise source.wrong(number, "one word per line", text)
        yield word
