"""Recommendation by two towers: `fit(histories)` and `recommend(histories, k)`, as for sequences."""

from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from candax import models
from candax.checks import checked
from candax.recipes.common import finished
from candax.recipes.common.options import with_options
from candax.recipes.retrieval.building import pair_of, two_towers
from candax.recipes.retrieval.command import RetrieveSettings, training_of
from candax.recipes.retrieval.features import Known
from candax.recipes.retrieval.saving import OPTIONS, known_of, save_model
from candax.recipes.retrieval.scoring import embeddings
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.recommender import SequenceRecommender, sequences_of


class TwoTowerRecommender(SequenceRecommender):
    """Which item a user takes next: the two towers of ``candax retrieve``, trained on histories of items.

    Args:
        options: of ``candax retrieve``, by name: ``dim``, ``epochs``, ``learning_rate``, ``length`` (the most items
            that are read of a history), ``recency``, ``sampler``, ``loss``, ``num_sampled``, ``seed`` and others.

    Attributes:
        items: what can be recommended, the most frequent first; once there is a model.

    Raises:
        ValueError: for options that there are not, or out of range.

    Example:
        >>> histories = [["tea", "milk", "jam"], ["tea", "milk"], ["bread", "jam"]] * 8
        >>> model = TwoTowerRecommender(dim=8, epochs=2, length=8, num_rows=2).fit(histories)
        >>> items, scores = model.recommend([["tea"]], 2)[0]
        >>> len(items), "tea" in items
        (2, False)
    """

    allowed = OPTIONS

    def __init__(self, **options: Any) -> None:
        self.settings: Any = with_options(RetrieveSettings, OPTIONS, options)
        self._found: Sequences | None = None
        self.features = Known()

    @checked
    def fit(self, histories: Iterable[Sequence[Hashable]]) -> "TwoTowerRecommender":
        """Trains anew, on all items of all histories.

        Args:
            histories: items in order, one history for each user; items are texts or whole numbers.

        Returns:
            This recommender.

        Raises:
            ValueError: if no history has two items.
        """
        found, self.features = sequences_of(histories), Known()
        training = training_of(self.settings, found, self.settings.seed, measured=False)
        self.model, _ = training.train(*pair_of(self.settings, found.num_items), "", None)
        self._set(found, found.counts())
        return self

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
        return save_model(Path(folder), self.settings, found, self.model, self.counts, self.features)

    def _untrained(self, saved: finished.Finished, num_items: int) -> models.Classifier:
        self.features = known_of(saved)
        return two_towers(self.settings, num_items, known=self.features)

    def _read(self, sequences: Sequences, questions: Questions) -> Float[np.ndarray, "n dim"]:
        """Whose histories these are is not known, so that nothing is of the users."""
        return embeddings(self.model, sequences, questions, self.settings.length)
