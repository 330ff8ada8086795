"""The table of all samplers and the table of all losses. A new one joins the conformance suite with one line here."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import candax as cx
from candax import losses, samplers
from candax.base import Classes, Loss, Query, Sampler

Support = Callable[[Classes, Query, int], np.ndarray]


def every_valid_class(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """bool [groups, num_classes]: all but the padding."""
    return np.broadcast_to(np.arange(classes.num_classes) < int(classes.num_valid), (groups, classes.num_classes))


def classes_seen(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """bool [groups, num_classes]: the valid classes with a count above 0."""
    return every_valid_class(classes, query, groups) & (np.asarray(classes.counts) > 0)


def _logits(classes: Classes, query: Query) -> np.ndarray:
    logits = np.asarray(query.embeddings) @ np.asarray(classes.vectors).T + np.asarray(classes.biases)
    return np.where(every_valid_class(classes, query, len(logits)), logits, -np.inf)


def best_classes(k: int) -> Support:
    """The k valid classes of highest logit, one group an example."""

    def support(classes: Classes, query: Query, groups: int) -> np.ndarray:
        logits = _logits(classes, query)
        kth = np.sort(logits, axis=1)[:, -k, None]
        return (logits >= kth) & (logits > -np.inf)

    return support


def labels(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """The labels of each example, one group an example."""
    return np.any(np.asarray(query.labels)[:, :, None] == np.arange(classes.num_classes), axis=1)


class SamplerCase(NamedTuple):
    """A sampler in the suite.

    Attributes:
        factory: ``num_groups -> Sampler`` (None: one group an example). Few samples, so that few draws see a bias.
        support: which classes it can draw: ``(classes, query, groups) -> bool[groups, num_classes]``.
        also_counted: classes outside the support that have a count nevertheless, of the same form.
        groups: the numbers of groups it offers.
        delta: the relative bias that the one law's test must see: 1 %, or 5 % where every draw needs a new index.
        random: False: the same candidates for every key.
        cost_grows: True: it streams over all classes, and so is excused from the law that cost does not grow with them.
        slow: its one law is tested among the slow tests only.

    What the one law's expectation runs over is ``sampler.facts.law_over``: with "index" and "batch" the suite builds a
    new state for every draw, with "batch" also a new query.
    """

    factory: Callable[[int | None], Sampler]
    support: Support = every_valid_class
    also_counted: Support | None = None
    groups: tuple[int | None, ...] = (1, 2, None)
    delta: float = 0.01
    random: bool = True
    cost_grows: bool = False
    slow: bool = False


# "Streamed": so few samples (under 1/8 of the classes) that distinct classes come from a stream instead of a race.
SAMPLERS: dict[str, SamplerCase] = {
    "uniform": SamplerCase(lambda g: samplers.uniform(6, num_groups=g)),
    "uniform distinct": SamplerCase(lambda g: samplers.uniform(6, num_groups=g, replacement=False)),
    "uniform streamed": SamplerCase(lambda g: samplers.uniform(2, num_groups=g, replacement=False)),
    "log_uniform": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g)),
    "log_uniform ranked": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g, ids_ranked=True)),
    "log_uniform distinct": SamplerCase(lambda g: samplers.log_uniform(6, num_groups=g, replacement=False)),
    "log_uniform streamed": SamplerCase(lambda g: samplers.log_uniform(2, num_groups=g, replacement=False), slow=True),
    "unigram": SamplerCase(lambda g: samplers.unigram(6, num_groups=g), classes_seen),
    "unigram smoothed": SamplerCase(lambda g: samplers.unigram(6, power=1.0, smoothing=1.0, num_groups=g)),
    "unigram distinct": SamplerCase(lambda g: samplers.unigram(6, num_groups=g, replacement=False), classes_seen),
    "unigram streamed": SamplerCase(
        lambda g: samplers.unigram(2, power=0.25, num_groups=g, replacement=False), classes_seen
    ),
    "top_k": SamplerCase(
        lambda g: samplers.top_k(6, block_size=8), best_classes(6), labels, groups=(None,), random=False, cost_grows=True
    ),
}


class LossCase(NamedTuple):
    """A loss in the suite.

    Attributes:
        loss: ``SampledLogits -> float32[B]``, with its hyperparameters bound.
        likelihood: it approximates the softmax negative log-likelihood: with every class as a candidate and expected
            count 1 it is the full softmax, adding a constant to all logits does not change it, and the gradient weight
            of every class is in [-1, 1] with sum 0.
        unbiased_normaliser: exp(loss + mean true logit) estimates the softmax normaliser without bias.
    """

    loss: Loss
    likelihood: bool = True
    unbiased_normaliser: bool = False


LOSSES: dict[str, LossCase] = {
    "css": LossCase(losses.css, unbiased_normaliser=True),
    "sampled_softmax": LossCase(losses.sampled_softmax),
    "subset_softmax": LossCase(losses.subset_softmax),
}


DIM, BATCH_SIZE, NUM_LABELS = 4, 4, 3
# Not ranked by id, ties, and three classes that were never seen. Behind the valid ones come padding rows whose vectors
# are NaN and whose counts are large: a sampler that looks at either is found out.
_COUNTS = [5, 0, 3, 12, 1, 1, 7, 0, 2, 9, 4, 4, 6, 2, 10, 3, 0, 8, 1, 11, 5]


def make_classes(num_valid: int = 21, num_rows: int = 24, dim: int = DIM) -> Classes:
    """A small output layer with padding rows that must never be used."""
    rng = np.random.default_rng(0)
    valid = np.arange(num_rows) < num_valid
    counts = np.where(valid, np.resize(_COUNTS, num_rows), 50.0)
    vectors = np.where(valid[:, None], rng.normal(size=(num_rows, dim)), np.nan)
    biases = np.where(valid, 0.3 * rng.normal(size=num_rows), np.nan)
    return cx.Classes(
        jnp.asarray(vectors, jnp.float32),
        jnp.asarray(biases, jnp.float32),
        jnp.asarray(counts, jnp.float32),
        jnp.int32(num_valid),
    )


def make_query(key: jax.Array, classes: Classes, batch_size: int = BATCH_SIZE) -> Query:
    """A random batch: normal embeddings, distinct labels, some examples with fewer labels than others."""
    key_embeddings, key_labels, key_pads = jax.random.split(key, 3)
    rows = classes.num_classes

    def labels_of(key: jax.Array) -> jax.Array:
        order = jnp.where(jnp.arange(rows) < classes.num_valid, jax.random.uniform(key, (rows,)), jnp.inf)
        return jnp.argsort(order)[:NUM_LABELS].astype(jnp.int32)

    labels = jax.vmap(labels_of)(jax.random.split(key_labels, batch_size))
    sizes = 1 + jax.random.randint(key_pads, (batch_size, 1), 0, NUM_LABELS)
    labels = jnp.where(jnp.arange(NUM_LABELS) < sizes, labels, -1)
    embeddings = jax.random.normal(key_embeddings, (batch_size, classes.vectors.shape[1]))
    return cx.Query(embeddings, labels, classes)
