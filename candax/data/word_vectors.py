"""Words with a vector each: neighbours and analogies by cosine, and the files that hold them."""

import dataclasses
import difflib
import functools
import os
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int64

from candax.checks import checked
from candax.data import vector_files


@checked
@dataclasses.dataclass(frozen=True, eq=False)
class WordVectors:
    """Words with a vector each.

    Args:
        words: distinct, the most frequent first.
        vectors: one per word.

    Raises:
        ValueError: if there is not one vector per word, a word is there twice, or a vector is not finite.

    Example:
        >>> vectors = WordVectors(("up", "high", "down"), np.array([[0.0, 1], [0, 2], [1, -1]], np.float32))
        >>> vectors.neighbors("up", 1)
        [('high', 1.0)]
    """

    words: tuple[str, ...]
    vectors: Float[np.ndarray, "num_words dim"]

    def __post_init__(self) -> None:
        if self.vectors.ndim != 2 or len(self.vectors) != len(self.words):
            raise ValueError(f"expected a vector for each of {len(self.words)} words, got {self.vectors.shape}.")
        if (fault := vector_files.fault_of(self.words, self.vectors)) is not None:
            raise ValueError(fault)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "WordVectors":
        """Reads a file that ``save``, word2vec, gensim or fastText has written.

        Raises:
            ValueError: if the file holds no word vectors.
            OSError: if it cannot be read.
        """
        return cls(*vector_files.read(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a file atomically, in the format of its ending: .txt, .vec (word2vec's text), .bin, .safetensors.

        Raises:
            ValueError: for another ending, or a word with white space in word2vec's formats.
        """
        vector_files.write(path, self.words, self.vectors)

    def __contains__(self, word: str) -> bool:
        """Whether the word has a vector."""
        return self.find(word) is not None

    def __getitem__(self, word: str) -> Float[np.ndarray, " dim"]:
        """The vector of a word."""
        return self.vectors[self._at(word)]

    def find(self, word: str) -> int | None:
        """The number of a word, or else of the word in small letters; None where there is neither."""
        found = self._index.get(word)
        return self._index.get(word.lower()) if found is None else found

    def neighbors(self, word: str, k: int = 10) -> list[tuple[str, float]]:
        """The k words of largest cosine with a word, and the cosines.

        Raises:
            ValueError: if the word has no vector.
        """
        at = self._at(word)
        return self._best(self.units[at], k, [at])

    def analogy(self, a: str, b: str, c: str, k: int = 10) -> list[tuple[str, float]]:
        """A is to b as c is to ...: the k words of largest cosine with b - a + c (unit vectors), without these three.

        Raises:
            ValueError: if a word has no vector.
        """
        at = [self._at(word) for word in (a, b, c)]
        wanted = self.units[at[1]] - self.units[at[0]] + self.units[at[2]]
        return self._best(wanted / max(float(np.linalg.norm(wanted)), 1e-12), k, at)

    @functools.cached_property
    def units(self) -> Float[np.ndarray, "num_words dim"]:
        """The vectors at length 1 (a vector of length 0 stays as it is)."""
        lengths = np.linalg.norm(self.vectors, axis=1, keepdims=True)
        return self.vectors / np.where(lengths > 0, lengths, 1)

    @functools.cached_property
    def _index(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def _at(self, word: str) -> int:
        found = self.find(word)
        if found is None:
            near = difflib.get_close_matches(word, self.words[:100_000], n=3)
            advice = f" Near in spelling: {', '.join(near)}." if near else ""
            raise ValueError(f"{word!r} is none of the {len(self.words):,} words with a vector.{advice}")
        return found

    def _best(self, wanted: Float[np.ndarray, " dim"], k: int, without: Sequence[int]) -> list[tuple[str, float]]:
        if k < 1:
            raise ValueError(f"expected 1 word or more to look for, got {k}.")
        cosines = self.units @ wanted
        cosines[list(without)] = -np.inf
        order: Int64[np.ndarray, k] = np.argsort(-cosines, kind="stable")[: min(k, len(self.words) - len(set(without)))]
        return [(self.words[i], float(cosines[i])) for i in order]
