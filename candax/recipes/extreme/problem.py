"""A data set of sparse features as a problem for the runner: what comparisons and the papers' studies train on."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optax
from flax import nnx
from jaxtyping import Int
from scipy.sparse import csr_array

import candax as cx
from candax import data, models
from candax.alike import made_once
from candax.base import Sampler
from candax.recipes.common import (
    Column,
    Method,
    Panel,
    Training,
    curves,
    full_softmax_for,
    over,
    plain_head,
    reached,
    relative,
)
from candax.recipes.extreme.embedding import measured

# Test examples behind each point of a curve.
CURVE_EXAMPLES = 5000
# Sizes of ``toy``.
_EXAMPLES, _FEATURES, _CLASSES = 64, 30, 20
_adam = made_once(optax.adam)


def make_model(
    dataset: data.Dataset,
    dim: int,
    sampler: Sampler | None,
    loss: Callable[..., Any],
    *,
    dropout: float = 0.0,
    seed: int,
) -> models.Classifier:
    """A sparse-feature MLP, followed by a head over all classes of the data set."""
    rngs = nnx.Rngs(seed)
    encoder = models.SparseMLP(dataset.num_features, dim, dropout=dropout, rngs=rngs)
    counts = dataset.label_counts(dataset.train)
    head = plain_head(dataset.num_classes, dim, counts, seed=seed, rngs=rngs)
    head.use(sampler, loss)
    return models.Classifier(encoder, head)


def problem(
    dataset: data.Dataset,
    *,
    batch_size: int,
    dim: int,
    learning_rate: float,
    epochs: float = 1.0,
    num_steps: int | None = None,
    dropout: float = 0.0,
    seed: int = 0,
    curve_examples: int | None = CURVE_EXAMPLES,
) -> Training:
    """Trains the model of ``make_model`` with Adam and measures it on the test set.

    Args:
        dataset: to train and test on.
        batch_size: examples per step.
        dim: width of the hidden layer and of the class vectors.
        learning_rate: of Adam.
        epochs: passes over the training set.
        num_steps: training steps, instead of epochs.
        dropout: of the embedding, in training.
        seed: of initial values, batches and candidates.
        curve_examples: test examples behind each point of the curve; None: there is no curve.

    Returns:
        A ``Training``, whose figures are those of ``candax.training.evaluate``, all features of an example read.
    """
    batches = data.Batches(dataset.train, batch_size, seed, flat=True)
    chosen = curve_rows(dataset, curve_examples)

    def make(sampler: Sampler | None, loss: Callable[..., Any]) -> tuple[models.Classifier, cx.Optimizer]:
        model = make_model(dataset, dim, sampler, loss, dropout=dropout, seed=seed)
        return model, cx.Optimizer(model, _adam(learning_rate), seed=seed)

    return Training(
        make,
        batches,
        num_steps or max(1, round(epochs * batches.batches_per_epoch)),
        measure=lambda model: measured(model, dataset),
        on_the_way=None if curve_examples is None else lambda model: measured(model, dataset, chosen),
    )


def curve_rows(dataset: data.Dataset, number: int | None = CURVE_EXAMPLES) -> Int[np.ndarray, " n"]:
    """The test examples behind each point of a curve, by their rows: the same for all who are measured."""
    return np.sort(np.random.default_rng(0).permutation(len(dataset.test))[:number])


def contest(
    training: Training, batch_size: int, num_classes: int, others: Mapping[str, tuple[Sampler | None, Any]]
) -> list[Method]:
    """The full softmax, in the form that fits into memory, and other samplers and losses by name."""
    full = training.by(None, full_softmax_for(batch_size, num_classes), "full softmax")
    methods = [Method({"method": "full_softmax"}, full)]
    return methods + [Method({"method": name}, training.by(*of, name)) for name, of in others.items()]


def toy() -> data.Dataset:
    """Learned in seconds, for ``--quick``: the first of an example's two classes can be read off a feature."""
    row = np.arange(_EXAMPLES)
    features = np.zeros((_EXAMPLES, _FEATURES), np.float32)
    features[row, row % _CLASSES] = 1
    features[row, _CLASSES + row % (_FEATURES - _CLASSES)] = 0.5
    labels = np.zeros((_EXAMPLES, _CLASSES), bool)
    labels[row, row % _CLASSES] = labels[row, (7 * row + 1) % _CLASSES] = True
    examples = data.Examples(csr_array(features), csr_array(labels))
    return data.Dataset("toy", examples, examples)


COLUMNS = (
    Column("method", "method"),
    Column("to 50 %", "epochs_to_50_percent", ".2f", reached("p_at_1", 0.5, "epoch")),
    Column("to 90 %", "epochs_to_90_percent", ".2f", reached("p_at_1", 0.9, "epoch")),
    Column("P@1", "p_at_1", ".3f"),
    Column("of full", "p_at_1_of_full", ".3f", relative("p_at_1")),
    Column("P@5", "p_at_5", ".3f"),
    Column("ms/step", "ms_per_step", ".1f"),
    Column("faster", "faster", ".1f", over("ms_per_step")),
)
CAPTION = "epochs to 50 and 90 % of full softmax's last P@1"
_PRECISION = "precision at 1 on test data"
PANELS = (
    Panel(
        curves("seconds", "p_at_1"),
        {"xlabel": "training time in seconds (log scale)", "xscale": "log", "ylabel": _PRECISION},
    ),
    Panel(curves("epoch", "p_at_1"), {"xlabel": "epochs", "ylabel": _PRECISION}),
)
