"""Recommendation by two towers: `fit(histories)` and `recommend(histories, k)`, as for sequences."""

from pathlib import Path
from typing import Any

from candax import models
from candax.recipes.common import finished
from candax.recipes.retrieval.building import known_of, pair_of, save_towers, two_towers
from candax.recipes.retrieval.command import RetrieveSettings, training_of
from candax.recipes.retrieval.features import Known
from candax.recipes.sequences.files import Sequences
from candax.recipes.sequences.recommender import SequenceRecommender


class TwoTowerRecommender(SequenceRecommender):
    """Which item a user takes next: the two towers of ``candax retrieve``, trained on histories of items.

    Args:
        options: of ``candax retrieve``, by name; ``recency`` is what an item weighs of the next one.

    Raises:
        ValueError: as for sequences.

    Example:
        >>> towers = TwoTowerRecommender(dim=8, epochs=2, length=8, num_rows=2, recency=0.8)
        >>> towers.fit([["tea", "milk", "jam"], ["tea", "milk"], ["bread", "jam"]] * 8).items[-1]
        'bread'
    """

    _kind = RetrieveSettings

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.features = Known()

    def _fitted(self, found: Sequences) -> models.Classifier:
        training = training_of(self.settings, found, self.settings.seed, measured=False)
        return training.train(*pair_of(self.settings, found.num_items), "", None)[0]

    def _untrained(self, num_items: int, saved: finished.Finished | None) -> models.Classifier:
        self.features = Known() if saved is None else known_of(saved)
        return two_towers(self.settings, num_items, known=self.features)

    def _save(self, folder: Path, found: Sequences) -> Path:
        return save_towers(folder, self.options, found, self.model, self.counts, known=self.features)
