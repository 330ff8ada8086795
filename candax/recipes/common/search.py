"""Finds the best classes for embeddings: exactly, by scoring all classes in blocks, or through an index."""

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int, Integer

from candax.base import Classes, Retriever
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_evaluate
from candax.checks import check_positive, checked
from candax.samplers.index_files import load_index, save_index
from candax.samplers.ivf.factory import ivf_index

# Embeddings that are scored, and inputs that are answered, at a time.
AT_A_TIME = 1024
# Classes that an index is asked for where fewer are wanted, so that probabilities hardly depend on how many those are.
_FOUND = 1000
# Of an index: the fewest classes that it sees and keeps, classes per list, and the shares that it sees and keeps.
_LEAST_CLASSES, _CLASSES_PER_LIST, _SEEN, _KEPT = 1000, 256, 0.1, 0.02

_exact = jax.jit(streaming_evaluate, static_argnums=2, static_argnames="block_size")


class Best(NamedTuple):
    """The best classes of each embedding, best first; where fewer are found, scores are -inf and ids are -1.

    Attributes:
        scores: logits.
        ids: classes.
        log_normalizer: ``log sum_c exp(logit_c)`` over all classes; None through an index, which does not see them.
    """

    scores: Float[np.ndarray, "n k"]
    ids: Int[np.ndarray, "n k"]
    log_normalizer: Float[np.ndarray, " n"] | None


class Search:
    """Finds the best classes of embeddings.

    Args:
        classes: all of them.
        index: a file that ``candax.samplers.save_index`` wrote of these classes; if it is missing, an index is
            built and written there. None: exact search.
    """

    def __init__(self, classes: Classes, index: Path | None = None) -> None:
        self.classes = classes
        self._index = None if index is None else _opened(index, classes)
        self.is_approximate = index is not None

    def best(
        self, embeddings: Float[np.ndarray, "n dim"], k: int, exclude: Integer[np.ndarray, "n e"] | None = None
    ) -> Best:
        """The k best, or as many as there are.

        Args:
            embeddings: any number of them.
            k: how many.
            exclude: ids to leave out for each embedding, padded with -1.
        """
        check_positive("k", k)
        k = min(k, int(self.classes.num_valid))
        size = min(AT_A_TIME, power_of_two(len(embeddings)))
        parts = [
            self._of_one_size(embeddings[at : at + size], size, k, None if exclude is None else exclude[at : at + size])
            for at in range(0, len(embeddings), size)
        ]
        if not parts:
            return Best(np.zeros((0, k), np.float32), np.zeros((0, k), np.int32), np.zeros(0, np.float32))
        scores, ids = (np.concatenate([part[i] for part in parts]) for i in range(2))
        normalizers = [part.log_normalizer for part in parts if part.log_normalizer is not None]
        return Best(scores, ids, np.concatenate(normalizers) if normalizers else None)

    def likeliest(
        self, embeddings: Float[np.ndarray, "n dim"], k: int
    ) -> tuple[Float[np.ndarray, "n k"], Int[np.ndarray, "n k"]]:
        """Probabilities, by the softmax, and ids of the k best.

        Through an index the probabilities are those among the 1,000 classes (or k, if that is more) that it finds.
        """
        best = self.best(embeddings, max(k, _FOUND) if self.is_approximate else k)
        if best.log_normalizer is None:
            probabilities = np.asarray(jax.nn.softmax(best.scores, axis=1))
        else:
            probabilities = np.exp(best.scores - best.log_normalizer[:, None])
        return probabilities[:, :k], best.ids[:, :k]

    def _of_one_size(self, embeddings: np.ndarray, size: int, k: int, exclude: np.ndarray | None) -> Best:
        """Searches for a part that is padded to one size, so that there are few compilations."""
        number = len(embeddings)
        filled = np.pad(embeddings, ((0, size - number), (0, 0)))
        if exclude is not None:
            wide = power_of_two(max(1, exclude.shape[1]))
            exclude = np.pad(exclude, ((0, size - number), (0, wide - exclude.shape[1])), constant_values=-1)
            exclude = exclude.astype(np.int32)
        if self._index is None:
            scores, ids, normalizer = map(
                np.asarray, _exact(filled, self.classes, k, exclude=exclude, block_size=DEFAULT_BLOCK_SIZE)
            )
            return _marked(scores[:number], ids[:number], normalizer[:number])
        find, state = self._index
        # Enough even if all classes to be left out come first.
        wanted = min(int(self.classes.num_valid), k + (0 if exclude is None else exclude.shape[1]))
        scores, ids = (np.asarray(part)[:number] for part in find(state, jnp.asarray(filled), self.classes, wanted))
        if exclude is not None:
            out = np.stack([np.isin(*row) for row in zip(ids, exclude[:number], strict=True)])
            scores = np.where(out, -np.inf, scores)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
            scores, ids = np.take_along_axis(scores, order, axis=1), np.take_along_axis(ids, order, axis=1)
        return _marked(scores, ids, None)


class Searching:
    """The base of interfaces in Python that answer by a search among all classes of their ``model``."""

    def _trained(self) -> Any:
        """Itself; where it may have no model yet, ValueError without one."""
        return self

    @functools.cached_property
    def search(self) -> Search:
        """The search that finds the best classes."""
        return Search(self._trained().model.head.whole())

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without the search, which is made from the weights; a copy searches exactly."""
        return {name: value for name, value in self.__dict__.items() if name != "search"}

    @checked
    def use_index(self, index: str | Path | None) -> Any:
        """Searches approximately from now on, or exactly again.

        Args:
            index: file of an index of these classes, which is built and written if the file is missing. None: exact
                search over all classes.

        Returns:
            This object.

        Raises:
            ValueError: for an index of other classes, or where nothing has been trained.
        """
        self.search = Search(self._trained().model.head.whole(), None if index is None else Path(index))
        return self


def alike(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Which inputs are answered together: of similar length, and not much in all when padded to the longest.

    Example:
        >>> alike([3, 1, 2, 9], most=9)
        [[1, 2, 0], [3]]
    """
    groups: list[list[int]] = [[]]
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        number = len(groups[-1]) + 1
        if number > AT_A_TIME or (number > 1 and number * lengths[row] > most):
            groups.append([])
        groups[-1].append(row)
    return groups if lengths else []


def padded(lists: Sequence[Sequence[int] | np.ndarray]) -> Int[np.ndarray, "n longest"]:
    """Lists of ids as rows of one length, filled up with -1."""
    found = np.full((len(lists), max([1, *map(len, lists)])), -1, np.int32)
    for row, ids in zip(found, lists, strict=True):
        row[: len(ids)] = ids
    return found


def power_of_two(number: int) -> int:
    """The least power of two that is not below a number."""
    return 1 << max(number - 1, 0).bit_length()


def _marked(scores: np.ndarray, ids: np.ndarray, normalizer: np.ndarray | None) -> Best:
    return Best(scores, np.where(scores > -np.inf, ids, -1), normalizer)


def _opened(path: Path, classes: Classes) -> tuple[Callable[..., Any], Any]:
    """The search function and the state of an index."""
    if path.exists():
        retriever, state, of = load_index(path)
        if of is None or not _equal(of, classes):
            raise ValueError(
                f"expected {path} to be an index of the run's classes, with its classes in it, got one of others. "
                "Remove it, or give another path, and it is built anew."
            )
    else:
        retriever = _default_index(int(classes.num_valid))
        state = jax.jit(retriever.build)(jax.random.key(0), classes)
        path.parent.mkdir(parents=True, exist_ok=True)
        save_index(path, retriever, state, classes)
    return jax.jit(retriever.find, static_argnums=3), state


def _default_index(num_classes: int) -> Retriever:
    centers = max(1, num_classes // _CLASSES_PER_LIST)
    seen = min(num_classes, max(_LEAST_CLASSES, round(_SEEN * num_classes)))
    kept = min(seen, max(_LEAST_CLASSES, round(_KEPT * num_classes)))
    return ivf_index(num_centers=centers, hm_num=seen, num_kept=kept, near="logit", codes="rotated", update_every=None)


def _equal(one: Classes, other: Classes) -> bool:
    def parts(classes: Classes) -> list[np.ndarray]:
        return [np.asarray(part) for part in (classes.vectors, classes.biases, classes.num_valid) if part is not None]

    first, second = parts(one), parts(other)
    same = one.normalized == other.normalized and len(first) == len(second)
    return same and all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
