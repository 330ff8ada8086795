"""A trained model of sparse features: probabilities of its classes, by weights and sizes alone."""

import functools
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import Float, Int
from scipy.sparse import csr_array
from scipy.special import expit

import candax as cx
from candax import models
from candax.data.weighting import weighted
from candax.recipes.common import finished
from candax.recipes.common.search import Searching
from candax.recipes.extreme.embedding import embedded


class Labels(Searching):
    """What a trained model predicts for examples.

    Args:
        about: ``num_features``, ``num_classes``, ``dim``, ``encoder``, ``probability`` ("sigmoid": each class by
            itself, or "softmax").
        weights: of the model.
        rarity: of features, if training weighted their counts by it.
    """

    def __init__(self, about: dict[str, Any], weights: dict[str, np.ndarray], rarity: np.ndarray | None = None) -> None:
        self.about, self.weights, self.rarity = about, weights, rarity

    @functools.cached_property
    def model(self) -> models.Classifier:
        """The model, in evaluation mode."""
        rngs, about = nnx.Rngs(0), self.about
        encoder = models.SparseMLP(about["num_features"], about["dim"], linear=about["encoder"] == "linear", rngs=rngs)
        model = models.Classifier(encoder, cx.Head(about["num_classes"], about["dim"], rngs=rngs))
        return finished.into(model, self.weights, "the model")

    def top_k(self, features: csr_array, k: int) -> tuple[Float[np.ndarray, "n k"], Int[np.ndarray, "n k"]]:
        """Probabilities and ids of the k likeliest classes, best first; those of a softmax as ``Search.likeliest``."""
        if not self._is_sigmoid:
            return self.search.likeliest(self.embedded(features), k)
        best = self.search.best(self.embedded(features), k)
        return expit(best.scores), best.ids

    def probabilities(self, features: csr_array) -> Float[np.ndarray, "n num_classes"]:
        """Probabilities of all classes."""
        logits = self.model.head(self.embedded(features))
        return expit(np.asarray(logits)) if self._is_sigmoid else np.asarray(jax.nn.softmax(logits, axis=1))

    def embedded(self, features: csr_array) -> Float[np.ndarray, "n dim"]:
        """Embeddings of examples, of which all features are read."""
        return embedded(self.model, features if self.rarity is None else weighted(features, self.rarity))

    @property
    def _is_sigmoid(self) -> bool:
        return self.about["probability"] == "sigmoid"

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle, without what is computed from the weights."""
        return {"about": self.about, "weights": self.weights, "rarity": self.rarity}
