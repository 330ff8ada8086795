"""Extreme classification, scikit-learn style: `ExtremeClassifier().fit(X, Y)`, over the model of `candax train`."""

import copy
import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from candax import data
from candax.checks import check_positive, checked
from candax.recipes.common import finished
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.common.options import with_options
from candax.recipes.common.results import as_json
from candax.recipes.extreme.arrays import classes_of, features_of, in_range, indicator_of, is_indicator
from candax.recipes.extreme.saving import OPTIONS, TASK, pair_of, probability_of
from candax.recipes.extreme.scoring import Labels
from candax.recipes.extreme.train import Train
from candax.training import fit

# Batches are small where the training set is, so that an epoch has at least this many.
_LEAST_BATCHES = 8
# The most numbers in a dense array of probabilities.
_MOST_PROBABILITIES = 1 << 28
# Types in which features are read: those too large or too small for float32 have a direction in float64.
_FLOATS = (np.float64, np.float32)
# Labels of an example that are looked at first, if their number is not given; more follow if all are likely.
_AT_FIRST = 64


class ExtremeClassifier(ClassifierMixin, BaseEstimator):
    """A linear classifier for up to millions of labels, trained with sampled losses, as a scikit-learn estimator.

    The model of ``candax train``: features scaled to length 1, a truncated singular value decomposition of the training
    features to start from, class vectors that start as centroids, then Adagrad on a sampled loss. ``X`` is sparse or
    dense ``[n, num_features]``; ``y`` a sparse or dense indicator ``[n, num_labels]`` (several labels per example), or
    ``[n]`` of any values (one label per example), as for scikit-learn's other classifiers. Of a few very long examples,
    training reads the features of largest value; predictions read all.

    Args:
        sampler: of candidates; None: all classes.
        loss: on the candidates.
        encoder: "linear", or "relu": a hidden layer that starts at random.
        dim: coordinates of embeddings and class vectors.
        epochs: passes over the training set.
        batch_size: examples per step; fewer where an epoch would have fewer than 8 batches.
        num_sampled: candidates that a batch shares; all classes, if there are no more than this.
        learning_rate: None: 0.1 with the linear encoder, of Adagrad, and 0.005 with "relu", of Adam.
        encoder_rate: learning rate of the linear encoder, as a share of the class vectors'.
        dropout: share of an embedding's coordinates that is left out at random in training; where test data come from
            other sources than training data, try 0.3.
        num_predicted: how many labels ``predict`` gives to each example, if ``y`` was an indicator; None: those of
            probability above 1/2, of which there may be none.
        seed: of all that is drawn.

    Attributes:
        classes_: the values of ``y``, or the numbers of its columns.
        multilabel_: whether ``y`` was an indicator.
        n_features_in_: columns of ``X``.

    Example:
        >>> from sklearn.feature_extraction.text import TfidfVectorizer
        >>> from sklearn.pipeline import make_pipeline
        >>> texts, kinds = ["red apple", "green apple", "red car", "fast car"] * 4, ["fruit", "fruit", "car", "car"] * 4
        >>> pipeline = make_pipeline(TfidfVectorizer(), ExtremeClassifier(dim=4)).fit(texts, kinds)
        >>> pipeline.predict(["an apple", "a car"]).tolist()
        ['fruit', 'car']
    """

    def __init__(
        self,
        *,
        sampler: SamplerName | None = "log_uniform",
        loss: LossName = "one_vs_all",
        encoder: Literal["linear", "relu"] = "linear",
        dim: int = 512,
        epochs: float = 6.0,
        batch_size: int = 128,
        num_sampled: int = 2048,
        learning_rate: float | None = None,
        encoder_rate: float = 0.2,
        dropout: float = 0.0,
        num_predicted: int | None = None,
        seed: int = 0,
    ) -> None:
        self.sampler = sampler
        self.loss = loss
        self.encoder = encoder
        self.dim = dim
        self.epochs = epochs
        self.batch_size = batch_size
        self.num_sampled = num_sampled
        self.learning_rate = learning_rate
        self.encoder_rate = encoder_rate
        self.dropout = dropout
        self.num_predicted = num_predicted
        self.seed = seed

    def fit(self, X: Any, y: Any) -> "ExtremeClassifier":
        """Trains anew; where that fails, the classifier stays as it was.

        Args:
            X: ``[n, num_features]``, sparse or dense, finite.
            y: ``[n, num_labels]``, sparse or dense, 1 where a label is true and else 0; or ``[n]``.

        Returns:
            This classifier.

        Raises:
            ValueError: for arrays that do not fit, or settings out of range.
        """
        found = copy.copy(self)
        found._fit(X, y)
        self.__dict__ = found.__dict__
        return self

    def _fit(self, X: Any, y: Any) -> None:
        check_positive("num_predicted", self.num_predicted, optional=True)
        settings = with_options(Train, OPTIONS, {name: getattr(self, name) for name in OPTIONS})
        X, labels = self._learned(X, y)
        examples = data.Examples(X, labels)
        nothing = data.Examples(examples.features[:0], labels[:0])
        dataset = data.Dataset("X", examples, nothing)
        settings = dataclasses.replace(
            settings, batch_size=max(1, min(self.batch_size, len(examples) // _LEAST_BATCHES))
        )
        training = settings.training(dataset, curve_examples=None)
        model, optimizer = training.make(*pair_of(settings, dataset.num_classes))
        fit(model, optimizer, training.batches, num_steps=training.num_steps, progress=False)
        probability = probability_of(self.sampler, self.loss) if self.multilabel_ else "softmax"
        self.fitted_ = Labels(
            {
                "num_features": dataset.num_features,
                "num_classes": dataset.num_classes,
                "dim": self.dim,
                "encoder": self.encoder,
                "max_features": training.batches.max_features,
                "probability": probability,
            },
            finished.weights_of(model),
        )

    @checked
    def predict(self, X: Any) -> Any:
        """The likeliest class of each example, ``[n]``; if ``y`` was an indicator, also one, and sparse if it was."""
        self._fitted()
        if not self.multilabel_:
            return self.classes_[self.top_k(X, 1)[1][:, 0]]
        check_positive("num_predicted", self.num_predicted, optional=True)
        wanted = self.num_predicted or _AT_FIRST
        probabilities, ids = self.top_k(X, wanted)
        while self.num_predicted is None and wanted < len(self.classes_) and (probabilities[:, -1] > 0.5).any():
            wanted *= 2
            probabilities, ids = self.top_k(X, wanted)
        kept = (probabilities > 0.5) | (self.num_predicted is not None)
        found = self._rows(kept.astype(np.int64), ids, kept)
        return found if self.sparse_ else found.toarray()

    @checked
    def predict_proba(self, X: Any, k: int | None = None) -> Any:
        """Probabilities of the classes.

        If ``y`` was an indicator, each label has a probability of its own, ``sigmoid(o_c)``, after training with a
        sampler and the loss ``one_vs_all``; in all other cases they are those of the softmax and sum to 1.

        Args:
            X: examples.
            k: only the k likeliest.

        Returns:
            ``[n, num_classes]``: dense, or with ``k`` sparse, with k entries per row.

        Raises:
            ValueError: for arrays that do not fit; where a dense array would have more than 2^28 numbers.
        """
        labels = self._fitted()
        if k is not None:
            probabilities, ids = self.top_k(X, k)
            return self._rows(probabilities, ids, np.ones(ids.shape, bool))
        X = self._read(X)
        size = X.shape[0] * len(self.classes_)
        if size > _MOST_PROBABILITIES:
            raise ValueError(
                f"expected at most {_MOST_PROBABILITIES} probabilities at once, got {X.shape[0]} examples of "
                f"{len(self.classes_)} classes: ask for the likeliest alone, predict_proba(X, k=10)."
            )
        return labels.probabilities(X)

    @checked
    def top_k(self, X: Any, k: int = 10) -> tuple[Float[np.ndarray, "n k"], Int[np.ndarray, "n k"]]:
        """The k likeliest classes of each example.

        Args:
            X: examples.
            k: how many; fewer if there are fewer classes.

        Returns:
            Probabilities and numbers of classes (places in ``classes_``), best first.
        """
        labels = self._fitted()
        return labels.top_k(self._read(X), k)

    @checked
    def use_index(self, index: str | Path | None) -> "ExtremeClassifier":
        """Makes ``top_k`` search approximately, through an index. Copies by pickle, joblib or ``save`` search exactly.

        Args:
            index: file of an index of these classes, which is built and written if the file is missing. None: exact
                search over all classes.

        Returns:
            This classifier.

        Raises:
            ValueError: for an index of other classes.
        """
        self._fitted().use_index(index)
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Precision at 1: the share of examples whose likeliest class is one of theirs; accuracy, if each has one."""
        self._fitted()
        if not self.multilabel_:
            return float(super().score(X, y, sample_weight))
        best = self.top_k(X, 1)[1][:, 0]
        truth = indicator_of(y, len(best))
        if truth.shape[1] != len(self.classes_):
            raise ValueError(f"expected y of {len(self.classes_)} columns, as in fit, got {truth.shape[1]}.")
        hits = np.asarray(truth[np.arange(len(best)), best]).ravel() != 0
        return float(np.average(hits, weights=sample_weight))

    def save(self, folder: str | Path) -> Path:
        """Writes the trained model into a folder, for ``candax.recipes.load`` and `candax predict`.

        Returns:
            The path of the file.

        Raises:
            ValueError: if classes are neither texts nor whole numbers.
        """
        labels = self._fitted()
        about = {**as_json(labels.about), "options": as_json(self.get_params()), "multilabel": self.multilabel_}
        about["sparse"] = self.sparse_
        classes = self.classes_
        if classes.dtype.kind in "biufU":
            about["dtype"] = classes.dtype.str
        if classes.dtype.kind in "bf" and np.array_equal(classes, np.round(classes)):
            classes = classes.astype(np.int64)
        plainly = np.array_equal(classes, np.arange(len(classes)))
        names = {} if plainly else {"classes": classes.tolist()}
        extra = {} if labels.rarity is None else {"rarity": labels.rarity}
        return finished.save(Path(folder), TASK, about, labels.weights, names=names, extra=extra)

    @classmethod
    def of(cls, saved: finished.Finished) -> "ExtremeClassifier":
        """The classifier that ``save`` or `candax train` has saved."""
        about = saved.about
        found = cls(**saved.options)
        found.multilabel_, found.sparse_ = about["multilabel"], about.get("sparse", True)
        found.n_features_in_ = about["num_features"]
        classes = saved.names.get("classes", np.arange(about["num_classes"]))
        # Each text by itself: in an array of texts all take as much memory as the longest one.
        kind = object if len(classes) and isinstance(classes[0], str) else None
        found.classes_ = np.array(classes, about.get("dtype", kind))
        found.fitted_ = Labels(about, saved.weights, saved.extra.get("rarity"))
        return found

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may pass to this classifier."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def _learned(self, X: Any, y: Any) -> tuple[csr_array, csr_array]:
        """Checks what is to be learned; notes the classes."""
        if y is None:
            raise ValueError("expected y: a classifier requires y to be passed, but the target y is None.")
        self.multilabel_ = is_indicator(y)
        self.sparse_ = issparse(y)
        if self.multilabel_:
            X = validate_data(self, X, accept_sparse="csr", dtype=_FLOATS)
            labels = indicator_of(y, X.shape[0])
            if not labels.nnz:
                raise ValueError(f"expected y with labels, got zeros alone for all {X.shape[0]} examples.")
            self.classes_ = np.arange(labels.shape[1])
        else:
            X, y = validate_data(self, X, y, accept_sparse="csr", dtype=_FLOATS)
            self.classes_, labels = classes_of(y)
        return in_range(features_of(X, X.dtype)), labels

    def _fitted(self) -> Labels:
        check_is_fitted(self, "fitted_")
        return self.fitted_

    def _read(self, X: Any) -> csr_array:
        X = validate_data(self, X, accept_sparse="csr", dtype=_FLOATS, reset=False)
        return features_of(X, X.dtype)

    def _rows(self, values: np.ndarray, ids: np.ndarray, kept: np.ndarray) -> csr_array:
        """A sparse matrix with a row for each example."""
        kept = kept & (ids >= 0)
        ends = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
        found = csr_array((values[kept], ids[kept], ends), shape=(len(ids), len(self.classes_)))
        found.sort_indices()
        return found
