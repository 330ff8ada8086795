"""Recommendation of the next item with the usual interface: `fit(histories)` and `recommend(histories, k)`."""

import dataclasses
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float

from candax import models
from candax.checks import check_positive, checked, described, warn
from candax.recipes.common import finished
from candax.recipes.common.options import with_options
from candax.recipes.common.search import Best, Searching, alike, padded
from candax.recipes.sequences.building import pair_of, sequence_model
from candax.recipes.sequences.command import TASK, SequencesSettings, training_of
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.next_item import NextItemSettings, save_model
from candax.recipes.sequences.scoring import embedded

# The most ids to leave out, padding included, of all histories that are searched together.
_MOST_LEFT_OUT = 1 << 20


class SequenceRecommender(Searching):
    """Which item comes next: the transformer of ``candax sequences``, trained on histories of items.

    Args:
        options: of ``candax sequences``, by name: ``dim``, ``epochs``, ``learning_rate``, ``length`` (the most items
            that are read of a history), ``sampler``, ``loss``, ``num_sampled``, ``dropout``, ``seed`` and others.

    Attributes:
        items: what can be recommended, the most frequent first; set by training or loading.

    Raises:
        ValueError: for unknown options, or values out of range.

    Example:
        >>> histories = [["tea", "milk", "jam"], ["tea", "milk"], ["bread", "jam"]] * 8
        >>> model = SequenceRecommender(dim=8, epochs=2, length=8, num_rows=2).fit(histories)
        >>> items, scores = model.recommend([["tea"]], 2)[0]
        >>> len(items), "tea" in items
        (2, False)
    """

    _kind: ClassVar[type[NextItemSettings]] = SequencesSettings

    def __init__(self, **options: Any) -> None:
        self.settings: Any = with_options(self._kind, self._kind.OPTIONS, options)
        self._found: Sequences | None = None

    @checked
    def fit(self, histories: Iterable[Any]) -> "SequenceRecommender":
        """Trains anew, on all items of all histories.

        Args:
            histories: a list or array of items in order for each user; items are texts or whole numbers.

        Returns:
            This recommender.

        Raises:
            ValueError: if no history has two items, one is no list of items, or two items are a number and its text.
        """
        found = sequences_of(histories)
        weights = finished.weights_of(self._fitted(found))
        # A model as it is loaded: without a sampler and what that remembers, which could not be pickled.
        self.model = finished.into(self._untrained(found.num_items, None), weights, "the model")
        self._set(found.name, found.item_names, found.counts())
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options by name."""
        return self.settings.options

    @checked
    def recommend(
        self, histories: Iterable[Any], k: int = 10, *, exclude_seen: bool = True
    ) -> list[tuple[list[Any], list[float]]]:
        """The items that come next, likeliest first.

        Items may be given as numbers or as texts: 3 and "3" are the same one, answered as it was in training; of a run
        of a command all are texts. Unknown items are left out of a history. A history without a known item gets the
        most popular items, whose scores are then their shares of all items in training. Where no item of any history
        is known, although there are some, there is a warning: they may be of other data.

        Args:
            histories: items in order.
            k: how many items for each history.
            exclude_seen: whether the items of a history are left out of its answer.

        Returns:
            Items and scores for each history: k of each, or as many as there are.
        """
        each = _lists(histories)
        ids = [self.known(history) for history in each]
        if any(each) and not any(ids):
            some = next(history for history in each if history)[0]
            warn(
                f"none of the items of {len(each)} histories is known, such as {described(some)}, so that the answers "
                f"are the most popular items: expected items such as {described(self.items[0])}."
            )
        best = self.best(ids, k, exclude_seen=exclude_seen)
        return [
            ([self.items[i] for i in row[row >= 0].tolist()], scores[row >= 0].tolist())
            for row, scores in zip(best.ids, best.scores, strict=True)
        ]

    def known(self, history: Iterable[Hashable]) -> list[int]:
        """Numbers of the items of a history, unknown ones left out; an item is known by its text."""
        numbers = self._trained()._numbers
        return [number for item in history if (number := numbers.get(str(item))) is not None]

    def best(self, histories: Sequence[Sequence[int]], k: int, *, exclude_seen: bool = True) -> Best:
        """As ``recommend``, with items as numbers."""
        check_positive("k", k)
        self._trained()
        number = min(k, len(self.items))
        scores, ids = np.full((len(histories), number), -np.inf, np.float32), np.full((len(histories), number), -1)
        asked = [row for row, history in enumerate(histories) if len(history)]
        for group in alike([len(histories[row]) for row in asked], _MOST_LEFT_OUT):
            rows = [asked[place] for place in group]
            some = [histories[row] for row in rows]
            seen = padded([np.unique(np.asarray(history, np.int32)) for history in some]) if exclude_seen else None
            found = self.search.best(self._embedded(some), number, seen)
            scores[rows], ids[rows] = found.scores, found.ids
        others = np.setdiff1d(np.arange(len(histories)), asked)
        popular = np.argsort(-self.counts, kind="stable")[:number]
        ids[others], scores[others] = popular, self.counts[popular] / max(self.counts.sum(), 1)
        return Best(scores, ids, None)

    @checked
    def save(self, folder: str | Path) -> Path:
        """Writes the trained model into a folder, for ``candax.recipes.load`` and `candax predict`.

        Returns:
            The path of the file.

        Raises:
            ValueError: if items are neither texts nor whole numbers.
        """
        found = self._trained()._found
        assert found is not None
        return self._save(Path(folder), found)

    @classmethod
    def of(cls, saved: finished.Finished) -> "SequenceRecommender":
        """The recommender that ``save`` or the command has saved."""
        found = cls(**saved.options)
        items = tuple(saved.names["items"])
        found.model = finished.into(found._untrained(len(items), saved), saved.weights, str(saved.path))
        found._set(saved.about["data"], items, saved.extra["counts"])
        return found

    def _fitted(self, found: Sequences) -> models.Classifier:
        """A model that has been trained."""
        settings = dataclasses.replace(self.settings, num_sampled=min(self.settings.num_sampled, found.num_items))
        training = training_of(settings, found, settings.seed, measured=False)
        return training.train(*pair_of(settings), "", None)[0]

    def _untrained(self, num_items: int, saved: finished.Finished | None) -> models.Classifier:
        """The model, whose weights are still to be read, from ``saved`` or what was trained."""
        del saved
        return sequence_model(self.settings, num_items)

    def _save(self, folder: Path, found: Sequences) -> Path:
        return save_model(folder, TASK, self.options, found, self.model, counts=self.counts)

    def _set(self, name: str, items: tuple[Any, ...], counts: np.ndarray) -> None:
        """Takes the names of what was trained on; the histories are not kept."""
        self.__dict__.pop("search", None)
        self._found = Sequences(name, items, np.zeros(0, np.int32), np.zeros(1, np.int64), held_out=0)
        self.counts, self.items = counts, items
        self._numbers = {str(item): number for number, item in enumerate(items)}

    def _trained(self) -> "SequenceRecommender":
        if self._found is None:
            raise ValueError("expected a recommender that was trained, got a new one: call fit(histories) first.")
        return self

    def _embedded(self, histories: Sequence[Sequence[int]]) -> Float[np.ndarray, "n dim"]:
        """The embeddings that the head scores after each history, of which the latest ``length`` items are read."""
        if not histories:
            return np.zeros((0, self.settings.dim), np.float32)
        sizes = np.array([len(history) for history in histories], np.int64)
        ends = np.cumsum(sizes)
        items = np.concatenate([np.asarray(history, np.int32) for history in histories])
        sequences = Sequences("", self.items, items, np.concatenate([[0], ends]))
        questions = Questions(ends - sizes, ends, np.zeros(len(sizes), np.int32))
        return embedded(self.model, sequences, questions, self.settings.length)


def _lists(histories: Iterable[Any]) -> list[list[Hashable]]:
    """The histories as lists; none may be a string, whose letters would be taken for items."""
    if isinstance(histories, np.ndarray | str):
        raise ValueError(
            f"expected histories as a list with a list of items for each user, got {described(histories)}."
        )
    each = []
    for number, history in enumerate(histories):
        if isinstance(history, str | bytes | Mapping) or not isinstance(history, Iterable):
            raise ValueError(
                f"expected histories as lists of items, got {described(history)} as history {number}. A single "
                "history is a list in a list."
            )
        if isinstance(history, Set):
            raise ValueError(f"expected histories in the order of time, got a set as history {number}.")
        each.append(list(history))
        wrong = next((item for item in each[-1] if not _is_item(item)), ...)
        if wrong is not ...:
            raise ValueError(f"expected items as texts or whole numbers, got {described(wrong)} in history {number}.")
    return each


def _is_item(item: object) -> bool:
    return isinstance(item, str | int | np.integer) and not isinstance(item, bool)


def sequences_of(histories: Iterable[Any]) -> Sequences:
    """Histories as ``Sequences``, all for training."""
    each = _lists(histories)
    counts = Counter(item for history in each for item in history)
    if not any(len(history) > 1 for history in each):
        raise ValueError(f"expected a history of two items or more to learn from, found none among {len(each)}.")
    if len(texts := {str(item): item for item in counts}) < len(counts):
        other = next(item for item in counts if texts[str(item)] is not item)
        raise ValueError(
            f"expected items that differ as texts, as which files hold them, got {described(other)} and "
            f"{described(texts[str(other)])}."
        )
    items = sorted(counts, key=lambda item: (-counts[item], str(item)))
    numbers = {item: number for number, item in enumerate(items)}
    ids = np.array([numbers[item] for history in each for item in history], np.int32)
    offsets = np.cumsum([0, *(len(history) for history in each)], dtype=np.int64)
    names: tuple[Any, ...] = tuple(item.item() if isinstance(item, np.generic) else item for item in items)
    return Sequences("histories", names, ids, offsets, held_out=0)
