"""The small problems that the laws are checked on: an output layer, batches and logits."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Classes, Query, SampledLogits

Support = Callable[[Classes, Query, int], np.ndarray]

DIM, BATCH_SIZE, NUM_LABELS = 4, 4, 3
# Of logits: examples, and slots of labels and of samples.
B, T, S = 5, 3, 6
# Not ranked by id, with ties and three classes that were never seen. Behind the valid classes come padding rows with
# NaN vectors and large counts: a sampler that looks at either is found out.
_COUNTS = [5, 0, 3, 12, 1, 1, 7, 0, 2, 9, 4, 4, 6, 2, 10, 3, 0, 8, 1, 11, 5]


def every_valid_class(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """A support of shape [groups, num_classes]: all but the padding rows."""
    return np.broadcast_to(np.arange(classes.num_classes) < int(classes.num_valid), (groups, classes.num_classes))


def classes_seen(classes: Classes, query: Query, groups: int) -> np.ndarray:
    """A support of shape [groups, num_classes]: the valid classes with a count above 0."""
    return every_valid_class(classes, query, groups) & (np.asarray(classes.counts) > 0)


def make_classes(num_valid: int = 21, num_classes: int = 24, *, seed: int = 0) -> Classes:
    """A small output layer with padding rows that must never be used; another seed gives it other rows and counts."""
    rng = np.random.default_rng(seed)
    valid = np.arange(num_classes) < num_valid
    counts = np.where(valid, np.resize(np.roll(_COUNTS, seed), num_classes), 50.0)
    vectors = np.where(valid[:, None], rng.normal(size=(num_classes, DIM)), np.nan)
    biases = np.where(valid, 0.3 * rng.normal(size=num_classes), np.nan)
    return Classes(
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
    return Query(embeddings, labels, classes)


def make_logits(seed: int, *, scale: float = 2.0) -> SampledLogits:
    """Random logits with pads, masked slots, hits and zero counts; masked slots hold finite logits too."""
    rng = np.random.default_rng(seed)

    def normal(width: int, scale: float) -> Array:
        return jnp.asarray(scale * rng.normal(size=(B, width)), jnp.float32)

    def yes(width: int, probability: float) -> Array:
        return jnp.asarray(rng.random((B, width)) < probability)

    return SampledLogits(
        true=normal(T, scale),
        true_log_expected_count=jnp.where(yes(T, 0.2), -jnp.inf, normal(T, 1.0)),
        true_mask=yes(T, 0.7).at[:, 0].set(True),
        sampled=normal(S, scale),
        sampled_log_expected_count=normal(S, 1.0),
        sampled_mask=yes(S, 0.7),
        hits=yes(S, 0.2),
        num_classes=100,
    )


def with_more_labels(logits: SampledLogits, seed: int) -> SampledLogits:
    """As of examples with two labels for which there was no slot; some samples that are no hits are one of them."""
    more = jnp.asarray(np.random.default_rng(seed).random((B, S)) < 0.4) & ~logits.hits
    return dataclasses.replace(logits, more_hits=more, num_labels=jnp.sum(logits.true_mask, axis=1) + 2)


def extreme_logits(seed: int, batch_size: int) -> SampledLogits:
    """Logits in [-80, 80], often at the ends, with any masks and hits, and counts from e^-80 to e^20, or 0."""
    rng = np.random.default_rng(seed)

    def numbers(width: int, low: float, high: float, special: list[float]) -> Array:
        shape = (batch_size, width)
        anything = rng.uniform(low, high, shape)
        return jnp.asarray(np.where(rng.random(shape) < 0.5, rng.choice(special, shape), anything), jnp.float32)

    # How many slots are real differs from example to example, from hardly any to nearly all.
    share = rng.random((batch_size, 1))

    def yes(width: int) -> Array:
        return jnp.asarray(rng.random((batch_size, width)) < share)

    logit, count = (-80.0, 80.0, [-80.0, 0.0, 80.0]), (-80.0, 20.0, [0.0, -np.inf])
    return SampledLogits(
        true=numbers(T, *logit),
        true_log_expected_count=numbers(T, *count),
        true_mask=yes(T),
        sampled=numbers(S, *logit),
        sampled_log_expected_count=numbers(S, *count),
        sampled_mask=yes(S),
        hits=jnp.asarray(rng.random((batch_size, S)) < 0.5),
        num_classes=1000,
    )


def logits_of(
    layer: tuple[Float[Array, "B dim"], Float[Array, "num_classes dim"], Float[Array, " num_classes"]],
    labels: Int[Array, "B T"],
    candidates: Candidates,
    true_log_expected_count: Float[Array, "B T"],
    num_classes: int,
) -> SampledLogits:
    """The logits of labels and candidates, by the definition: ``layer`` is embeddings, class vectors and biases."""
    embeddings, vectors, biases = layer
    per_group = len(labels) // len(candidates.ids)
    ids, counts, mask = (
        jnp.repeat(part, per_group, axis=0) for part in (candidates.ids, candidates.log_expected_count, candidates.mask)
    )
    true_ids = jnp.maximum(labels, 0)

    def scored(ids: Array) -> Array:
        return jnp.einsum("bd,bnd->bn", embeddings, vectors[ids], precision="highest") + biases[ids]

    return SampledLogits(
        true=scored(true_ids),
        true_log_expected_count=true_log_expected_count,
        true_mask=labels >= 0,
        sampled=scored(ids),
        sampled_log_expected_count=counts,
        sampled_mask=mask,
        hits=jnp.any(ids[:, :, None] == labels[:, None, :], axis=-1),
        num_classes=num_classes,
    )
