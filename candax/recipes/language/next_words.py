"""Predicts the next words by a finished run of `candax language`."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.checks import check_positive, checked
from candax.recipes.common import finished
from candax.recipes.common.search import Searching, alike, power_of_two
from candax.recipes.language.building import language_model
from candax.recipes.language.command import LanguageSettings
from candax.recipes.language.files import END, UNKNOWN
from candax.training.trainer import Graph

# How many of the latest words of a text an LSTM reads.
_LATEST = 512
# Words that are read at a time.
_MOST_WORDS = 1 << 16


class NextWords(Searching):
    """Predicts the next words of texts by a finished run of ``candax language``; from ``candax.recipes.load``.

    Attributes:
        words: the vocabulary, in the order of the words' numbers.
    """

    def __init__(self, settings: LanguageSettings, words: Sequence[str], weights: Any, where: str) -> None:
        self.settings, self.words = settings, tuple(words)
        self.model = finished.into(language_model(settings, len(self.words)), weights, where)
        self._numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def of(cls, saved: finished.Finished) -> "NextWords":
        """Makes one from what `candax language` saved."""
        options = {name: saved.options[name] for name in LanguageSettings.OPTIONS}
        return cls(LanguageSettings(**options), saved.names["words"], saved.weights, str(saved.path))

    @checked
    def complete(
        self, texts: Iterable[Sequence[str] | str], k: int = 10, *, unknown: bool = False
    ) -> list[tuple[list[str], list[float]]]:
        """The likeliest next words of each text, and their probabilities among all words.

        A text is read as the beginning of a line. Words that the run does not know are read as ``<unk>``, or left out
        if it has no ``<unk>``. Of a long text an LSTM reads the latest 512 words, a transformer as many as in training.

        Args:
            texts: each a list of words.
            k: words for each.
            unknown: whether ``<unk>`` may be among the answers.

        Returns:
            Words and probabilities, likeliest first; through an index, probabilities among the 1,000 words (or k, if
            that is more) that it finds.

        Raises:
            ValueError: for a text that is not a list of words; of a run over hashed pairs of words.
        """
        if self.settings.pairs:
            raise ValueError("expected a run over words, got one with --pairs, whose classes are no words to answer.")
        each = list(texts)
        if any(isinstance(text, str) for text in each):
            raise ValueError("expected texts as lists of words, got a text by itself: split it into its words.")
        check_positive("k", k)
        ids = [self.known(text) for text in each]
        answers: list[tuple[list[str], list[float]]] = [([], [])] * len(ids)
        leave = self._numbers.get(UNKNOWN, -1) if not unknown else -1
        for rows in alike([power_of_two(min(len(of) + 1, _LATEST)) for of in ids], _MOST_WORDS):
            # One more, as <unk> may be left out.
            chances, best = self.search.likeliest(self._read([ids[row] for row in rows]), k + 1)
            for row, found, of in zip(rows, best, chances, strict=True):
                kept = np.flatnonzero((found >= 0) & (found != leave))[:k]
                answers[row] = ([self.words[i] for i in found[kept].tolist()], of[kept].tolist())
        return answers

    def known(self, text: Iterable[str]) -> list[int]:
        """Numbers of the words of a text."""
        other = self._numbers.get(UNKNOWN)
        found = (self._numbers.get(word, other) for word in text)
        return [number for number in found if number is not None]

    @functools.cached_property
    def _split(self) -> tuple[Graph, Any]:
        graph, arrays = nnx.split(self.model)
        return Graph(graph), arrays

    def _read(self, texts: Sequence[Sequence[int]]) -> Float[np.ndarray, "n dim"]:
        """The embedding that the head scores after the last word of each text."""
        settings, start = self.settings, self._numbers[END]
        lstm = settings.model == "lstm"
        most = _LATEST if lstm else settings.read_again + settings.length
        latest = [[start, *text][-most:] for text in texts]
        width = power_of_two(max(map(len, latest))) if lstm else most
        words = np.full((power_of_two(len(texts)), width), -1, np.int32)
        ends = np.zeros(len(words), np.int32)
        for row, text in enumerate(latest):
            # What an LSTM reads after the last word changes nothing before it; a transformer does not see -1, and gives
            # embeddings only of the last words of a row.
            at = 0 if lstm else width - len(text)
            words[row, at : at + len(text)] = text
            ends[row] = at + len(text) - 1 if lstm else settings.length - 1
        return np.asarray(_embedded(*self._split, words, ends))[: len(texts)]


@functools.partial(jax.jit, static_argnums=0)
def _embedded(
    graph: Graph, arrays: Any, words: Int[Array | np.ndarray, "B L"], ends: Int[Array | np.ndarray, " B"]
) -> Float[Array, "B dim"]:
    encoder: Any = nnx.merge(graph.graph, arrays).encoder
    embeddings, _ = encoder.read(words, encoder.start(words.shape[0]))
    return jnp.take_along_axis(embeddings, jnp.asarray(ends)[:, None, None], axis=1)[:, 0]
