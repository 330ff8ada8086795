"""The laws of losses, as assertions; ``test_losses`` runs them on all losses, ``test_mutants`` on faulty ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from candax.base import Candidates, Classes, Loss, SampledLogits, Sampler
from candax.models.heads import score
from tests.conformance.statistics import check_mean
from tests.conformance.tables import make_classes, make_query

B, T, S = 5, 3, 6


def make_logits(seed: int, *, scale: float = 2.0) -> SampledLogits:
    """Random logits with pads, masked slots, hits and zero counts; slots hold finite numbers everywhere."""
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


def value_and_gradient(loss: Loss, logits: SampledLogits) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The loss [B] and its gradients with respect to true and sampled logits."""

    def total(true: Array, sampled: Array) -> tuple[Array, Array]:
        values = loss(dataclasses.replace(logits, true=true, sampled=sampled))
        return jnp.sum(values), values

    (_, values), (of_true, of_sampled) = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(
        logits.true, logits.sampled
    )
    return np.asarray(values), np.asarray(of_true), np.asarray(of_sampled)


def check_shape(loss: Loss) -> None:
    """One unreduced float32 number an example."""
    values = loss(make_logits(0))
    assert values.shape == (B,)
    assert values.dtype == jnp.float32


def check_full_coverage(loss: Loss) -> None:
    """Law 3: with every class as a candidate and expected count 1: the full softmax, value and gradient."""
    classes = make_classes(num_valid=20, num_rows=20)
    query = make_query(jax.random.key(3), classes, batch_size=6)
    shared = jnp.arange(20, dtype=jnp.int32)[None]
    candidates = Candidates(shared, jnp.zeros((1, 20)), jnp.ones((1, 20), bool))

    def sampled_loss(embeddings: Array, vectors: Array, biases: Array) -> tuple[Array, Array]:
        labels = jnp.maximum(query.labels, 0)
        logits = score(
            embeddings,
            query.labels,
            candidates,
            jnp.zeros(labels.shape),
            vectors[labels],
            biases[labels],
            vectors[shared],
            biases[shared],
            num_classes=20,
        )
        values = loss(logits)
        return jnp.sum(values), values

    assert classes.biases is not None
    args = (query.embeddings, classes.vectors, classes.biases)
    (_, values), gradients = jax.value_and_grad(sampled_loss, argnums=(0, 1, 2), has_aux=True)(*args)
    expected, *expected_gradients = full_softmax_by_hand(args, query.labels)
    np.testing.assert_allclose(values, expected, rtol=2e-5, atol=2e-6)
    for got, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=2e-6)


def full_softmax_by_hand(
    layer: tuple[Array, Array, Array], labels: Array
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Float64 losses [B] and the gradients of their sum: the definition, with target 1 / |Y| on each label."""
    embeddings, vectors, biases = (np.asarray(part, np.float64) for part in layer)
    logits = embeddings @ vectors.T + biases
    top = logits.max(axis=1, keepdims=True)
    log_normaliser = top + np.log(np.exp(logits - top).sum(axis=1, keepdims=True))
    target = np.zeros_like(logits)
    for b, of_example in enumerate(np.asarray(labels)):
        real = of_example[of_example >= 0]
        target[b, real] = 1 / len(real)
    residual = np.exp(logits - log_normaliser) - target
    values = log_normaliser[:, 0] - (target * logits).sum(axis=1)
    return values, residual @ vectors, residual.T @ embeddings, residual.sum(axis=0)


def check_gradient_weights(loss: Loss) -> None:
    """Law 4: each class's weight is in [-1, 1], the weights of an example sum to 0."""
    for seed in range(20):
        logits = make_logits(seed, scale=1.0 if seed % 2 else 30.0)
        _, of_true, of_sampled = value_and_gradient(loss, logits)
        assert np.all(np.abs(of_true) <= 1 + 1e-6)
        # A class may stand in several slots; weights of sampled classes are >= 0, so that all slots together bound it.
        assert np.all(of_sampled >= 0)
        assert np.all(of_sampled.sum(axis=1) <= 1 + 1e-6)
        np.testing.assert_allclose(of_true.sum(axis=1) + of_sampled.sum(axis=1), 0, atol=1e-5)


def check_masked_do_not_matter(loss: Loss) -> None:
    """Law 2: whatever masked slots hold, NaN included, reaches neither value nor gradient."""
    for seed in range(5):
        logits = make_logits(seed)
        clean = value_and_gradient(loss, logits)
        assert all(np.all(np.isfinite(part)) for part in clean)
        assert np.all(clean[1][~np.asarray(logits.true_mask)] == 0)
        assert np.all(clean[2][~np.asarray(logits.sampled_mask)] == 0)
        for rubbish in (np.nan, np.inf, -np.inf, 1e30):
            dirty = dataclasses.replace(
                logits,
                true=jnp.where(logits.true_mask, logits.true, rubbish),
                true_log_expected_count=jnp.where(logits.true_mask, logits.true_log_expected_count, rubbish),
                sampled=jnp.where(logits.sampled_mask, logits.sampled, rubbish),
                sampled_log_expected_count=jnp.where(logits.sampled_mask, logits.sampled_log_expected_count, rubbish),
                hits=logits.hits | ~logits.sampled_mask,
            )
            for got, wanted in zip(value_and_gradient(loss, dirty), clean, strict=True):
                np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7, err_msg=f"masked slots hold {rubbish}")


def check_finite(loss: Loss, logits: SampledLogits) -> None:
    """Law 4: neither values nor gradients are NaN or infinite."""
    for part in value_and_gradient(loss, logits):
        assert np.all(np.isfinite(part)), f"{part} for {logits}"


def check_finite_at_the_edges(loss: Loss) -> None:
    """Law 4 at no candidates, all hits, impossible classes, extreme logits; an example without labels costs nothing."""
    logits = make_logits(1)
    none = jnp.zeros((B, S), bool)
    impossible = jnp.full((B, T), -jnp.inf), jnp.full((B, S), -jnp.inf)
    check_finite(loss, dataclasses.replace(logits, sampled_mask=none))
    check_finite(loss, dataclasses.replace(logits, hits=~none, sampled_mask=~none))
    check_finite(loss, dataclasses.replace(logits, true_log_expected_count=impossible[0]))
    check_finite(loss, dataclasses.replace(logits, sampled_log_expected_count=impossible[1]))
    for true in (-80.0, 80.0):
        for sampled in (-80.0, 80.0):
            edge = dataclasses.replace(logits, true=jnp.full((B, T), true), sampled=jnp.full((B, S), sampled))
            check_finite(loss, edge)
            check_finite(loss, dataclasses.replace(edge, sampled_log_expected_count=jnp.full((B, S), -80.0)))
            check_finite(loss, dataclasses.replace(edge, sampled_mask=none))
    unlabelled = dataclasses.replace(logits, true_mask=jnp.zeros((B, T), bool))
    values, of_true, of_sampled = value_and_gradient(loss, unlabelled)
    assert np.all(values == 0)
    assert np.all(of_true == 0)
    assert np.all(of_sampled == 0)
    empty = jax.tree.map(lambda field: field[:, :0], logits)
    assert np.all(np.asarray(loss(empty)) == 0), "no labels and no candidates at all"


def check_order_does_not_matter(loss: Loss) -> None:
    """Permuting the samples changes nothing but rounding."""
    for seed in range(5):
        logits = make_logits(seed)
        order = np.random.default_rng(seed).permutation(S)
        names = ("sampled", "sampled_log_expected_count", "sampled_mask", "hits")
        permuted = dataclasses.replace(logits, **{name: getattr(logits, name)[:, order] for name in names})
        np.testing.assert_allclose(loss(permuted), loss(logits), rtol=1e-5, atol=1e-6)


def check_examples_stand_alone(loss: Loss) -> None:
    """What an example costs does not depend on the rest of the batch."""
    logits = make_logits(3)
    alone = [loss(jax.tree.map(lambda field, b=b: field[b : b + 1], logits)) for b in range(B)]
    np.testing.assert_allclose(jnp.concatenate(alone), loss(logits), rtol=1e-5, atol=1e-6)


def check_shift_does_not_matter(loss: Loss) -> None:
    """Adding a constant to all logits leaves a likelihood as it is."""
    for shift in (-7.5, 40.0):
        logits = make_logits(2)
        shifted = dataclasses.replace(logits, true=logits.true + shift, sampled=logits.sampled + shift)
        np.testing.assert_allclose(loss(shifted), loss(logits), rtol=1e-4, atol=1e-5)


def check_unbiased_normaliser(loss: Loss, sampler: Sampler, support: np.ndarray, classes: Classes) -> None:
    """E[exp(loss + mean true logit)] is the softmax normaliser over the labels and the support [B, C]."""
    query = make_query(jax.random.key(3), classes)
    fixed = sampler.init(jax.random.key(4), classes)
    biases = classes.biases
    assert biases is not None
    everything = biases + query.embeddings @ classes.vectors.T
    labels = jnp.maximum(query.labels, 0)
    true_mask = query.labels >= 0
    true_mean = jnp.sum(jnp.where(true_mask, jnp.take_along_axis(everything, labels, 1), 0), 1) / true_mask.sum(1)

    def normaliser(key: Array) -> Array:
        key_init, key_sample = jax.random.split(key)
        state = fixed if sampler.facts.law_over == "draw" else sampler.init(key_init, classes)
        candidates = sampler.sample(state, key_sample, query)
        groups = candidates.ids.shape[0]
        of_labels = query.labels.reshape(groups, -1)
        counts = sampler.log_expected_count(state, candidates, jnp.maximum(of_labels, 0), query)
        logits = score(
            query.embeddings,
            query.labels,
            candidates,
            counts.reshape(labels.shape),
            classes.vectors[labels],
            biases[labels],
            classes.vectors[candidates.ids],
            biases[candidates.ids],
            num_classes=int(classes.num_valid),
        )
        return jnp.exp(loss(logits) + true_mean)

    is_label = np.any(np.asarray(query.labels)[:, :, None] == np.arange(classes.num_classes), axis=1)
    terms = np.where(support | is_label, np.exp(np.asarray(everything, np.float64)), 0.0)
    check_mean(normaliser, terms.sum(axis=1), delta=0.01, seed=21)
