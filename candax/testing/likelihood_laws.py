"""The laws of losses that approximate the softmax likelihood, and of how counts correct logits: ``LIKELIHOOD_LAWS``."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from candax.base import Candidates, SampledLogits
from candax.testing.bench import Bench
from candax.testing.broken import Law, LawBroken
from candax.testing.loss_bench import PARTS, LossBench, check_all, check_close
from candax.testing.problems import B, S, T, logits_of, make_classes, make_logits, make_query, with_more_labels
from candax.testing.statistics import check_mean


def check_full_coverage(bench: LossBench) -> None:
    """Law 3: with every class as a candidate and expected count 1, a likelihood is the full softmax, with gradients."""
    _check_full_softmax(bench, lambda is_label: np.ones_like(is_label, int))


def check_correction(bench: LossBench) -> None:
    """Law 3 with classes other than the labels 1, 2 or 3 times among the candidates, which their counts say."""
    _check_full_softmax(bench, lambda is_label: np.where(is_label, 1, 1 + np.arange(is_label.shape[1]) % 3))


def _check_full_softmax(bench: LossBench, times_of: Callable[[np.ndarray], np.ndarray]) -> None:
    """``times_of`` says how often each class is a candidate of each example, given which are its labels [B, 20].

    Labels must stand there once: with any other number the losses that correct true logits are another estimate.
    """
    classes = make_classes(num_valid=20, num_classes=20)
    query = make_query(jax.random.key(3), classes, batch_size=6)
    times = times_of(np.any(np.asarray(query.labels)[:, :, None] == np.arange(20), axis=1))
    copy = np.repeat(np.arange(times.max()), 20)
    times = np.tile(times, times.max())
    ids = jnp.asarray(np.broadcast_to(np.arange(times.shape[1]) % 20, times.shape), jnp.int32)
    candidates = Candidates(ids, jnp.log(jnp.asarray(times, jnp.float32)), jnp.asarray(copy < times))

    def sampled_loss(*layer: Array) -> tuple[Array, Array]:
        values = bench.loss(logits_of(layer, query.labels, candidates, jnp.zeros(query.labels.shape), 20))  # type: ignore[arg-type]
        return jnp.sum(values), values

    layer = (query.embeddings, classes.vectors, classes.biases)
    (_, values), gradients = jax.jit(jax.value_and_grad(sampled_loss, argnums=(0, 1, 2), has_aux=True))(*layer)
    expected, *expected_gradients = full_softmax_by_hand(layer, query.labels)
    check_close(values, expected, 2e-5, 2e-6, "the loss of an example")
    for name, got, wanted in zip(("embeddings", "vectors", "biases"), gradients, expected_gradients, strict=True):
        check_close(got, wanted, 2e-4, 2e-6, f"the gradient of {name}")


def check_small_counts(bench: LossBench) -> None:
    """Counts of any size correct a likelihood: a candidate of logit o and count n is one of o - log n and count 1.

    In training most counts are far below 1.
    """
    logits = make_logits(4)
    counts = jnp.asarray(np.random.default_rng(7).uniform(-12, 3, (B, S)), jnp.float32)
    counted = dataclasses.replace(logits, sampled_log_expected_count=counts)
    corrected = dataclasses.replace(
        logits, sampled=logits.sampled - counts, sampled_log_expected_count=jnp.zeros((B, S))
    )
    what = "the loss with counts of candidates from e^-12 to e^3"
    check_close(bench.values(counted), bench.values(corrected), 1e-4, 1e-5, what)


def check_all_counts(bench: LossBench) -> None:
    """Counts correct all logits: labels and candidates of logit o and count n are those of o - log n and count 1."""
    for seed in range(5):
        logits = _possible(make_logits(seed))
        corrected = dataclasses.replace(
            _without_true_counts(logits, of_logits=True),
            sampled=logits.sampled - logits.sampled_log_expected_count,
            sampled_log_expected_count=jnp.zeros((B, S)),
        )
        parts = zip(PARTS, bench.value_and_gradient(logits), bench.value_and_gradient(corrected), strict=True)
        for name, got, wanted in parts:
            check_close(got, wanted, 1e-4, 1e-5, f"{name} with the counts as they are, not taken from the logits")


def full_softmax_by_hand(layer: Any, labels: Array) -> tuple[np.ndarray, ...]:
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


def check_true_counts(bench: LossBench) -> None:
    """True counts are of no account, or true logits o of counts n are logits o - log n of count 1.

    A third way is left to them: they weigh the samples, as in ``css`` with "redraw". Then labels stand among the others
    as their logits say, which the gradient tells: that of a label is its probability less 1 / |Y|.
    """
    off = dict.fromkeys(("counts that are of no account", "logits o - log n"), 0.0)
    of_samples = True
    for seed in range(5):
        logits = _possible(make_logits(seed))
        values, of_true, of_sampled = bench.value_and_gradient(logits)
        for way, of_logits in zip(off, (False, True), strict=True):
            wanted = bench.value_and_gradient(_without_true_counts(logits, of_logits=of_logits))
            parts = zip((values, of_true, of_sampled), wanted, strict=True)
            off[way] = max(off[way], *(float(np.max(np.abs(got - part))) for got, part in parts))
        true, mask = np.asarray(logits.true, np.float64), np.asarray(logits.true_mask)
        target = mask / mask.sum(axis=1, keepdims=True)
        relative = true - np.sum(target * true, axis=1, keepdims=True)
        probability = np.exp(relative - values[:, None])
        of_samples &= np.allclose(of_true, np.where(mask, probability - target, 0), 1e-4, 1e-5)
    if not of_samples and min(off.values()) > 1e-4:
        said = " and ".join(f"from that of {way} by up to {by:.4g}" for way, by in off.items())
        raise LawBroken(f"with true counts n beside true logits o the loss and its gradient differ {said}")


def _possible(logits: SampledLogits) -> SampledLogits:
    """With count 1 for labels that their sampler cannot draw: those have no correction."""
    counts = logits.true_log_expected_count
    return dataclasses.replace(logits, true_log_expected_count=jnp.where(counts == -jnp.inf, 0.0, counts))


def _without_true_counts(logits: SampledLogits, *, of_logits: bool) -> SampledLogits:
    """With true counts of 1, ``of_logits``: that were taken from the logits before."""
    true = logits.true - of_logits * logits.true_log_expected_count
    return dataclasses.replace(logits, true=true, true_log_expected_count=jnp.zeros((B, T)))


def check_gradient_weights(bench: LossBench) -> None:
    """Law 4: each class's weight is in [-1, 1], the weights of an example sum to 0."""
    for seed in range(20):
        logits = make_logits(seed, scale=1.0 if seed % 2 else 30.0)
        _, of_true, of_sampled = bench.value_and_gradient(logits)
        largest = np.max(np.abs(of_true))
        check_all(
            np.abs(of_true) <= 1 + 1e-6, f"the weight of a label is outside [-1, 1] (the largest is {largest:.6g})"
        )
        # A class may stand in several slots. As sampled weights are >= 0, the sum over all slots bounds each class's.
        check_all(of_sampled >= 0, f"the weight of a sampled class is below 0 (the least is {np.min(of_sampled):.6g})")
        largest = np.max(of_sampled.sum(axis=1))
        check_all(
            of_sampled.sum(axis=1) <= 1 + 1e-6, f"the weights of the samples are above 1 together ({largest:.6g})"
        )
        check_close(
            of_true.sum(axis=1) + of_sampled.sum(axis=1), np.zeros(B), 0, 1e-5, "the sum of an example's weights"
        )


def check_shift(bench: LossBench) -> None:
    """Adding a constant to all logits leaves a likelihood as it is."""
    logits = make_logits(2)
    for shift in (-7.5, 40.0):
        shifted = dataclasses.replace(logits, true=logits.true + shift, sampled=logits.sampled + shift)
        check_close(
            bench.values(shifted), bench.values(logits), 1e-4, 1e-5, f"the loss after adding {shift} to all logits"
        )


def check_more_hits(bench: LossBench) -> None:
    """Of a likelihood's normaliser labels without a slot are a part, for which samples stand as for any class."""
    for seed in range(5):
        logits = make_logits(seed)
        found, wanted = (bench.value_and_gradient(case) for case in (with_more_labels(logits, seed), logits))
        for name, got, part in zip(PARTS, found, wanted, strict=True):
            check_close(got, part, 1e-5, 1e-6, f"{name}, once samples are labels without a slot")


def check_normaliser(on: LossBench) -> None:
    """E[exp(loss + mean true logit)] is the softmax normaliser over the labels and the support [B, num_classes]."""
    bench = Bench(on.sampler, on.case, on.clock)
    sampler, classes = bench.sampler, bench.classes
    query = make_query(jax.random.key(3), classes)
    fixed = sampler.init(jax.random.key(4), classes)
    biases = classes.biases
    assert biases is not None
    labels = query.labels
    everything = biases + query.embeddings @ classes.vectors.T
    of_labels = jnp.where(labels >= 0, jnp.take_along_axis(everything, jnp.maximum(labels, 0), 1), 0)
    true_mean = jnp.sum(of_labels, 1) / jnp.sum(labels >= 0, 1)

    def normaliser(key: jax.Array) -> jax.Array:
        key_init, key_sample = jax.random.split(key)
        state = fixed if sampler.facts.law_over == "draw" else sampler.init(key_init, classes)
        candidates = sampler.sample(state, key_sample, query)
        by_group = jnp.maximum(labels.reshape(bench.groups, -1), 0)
        counts = sampler.log_expected_count(state, candidates, by_group, query).reshape(labels.shape)
        layer = (query.embeddings, classes.vectors, biases)
        logits = logits_of(layer, labels, candidates, counts, int(classes.num_valid))
        return jnp.exp(on.loss(logits) + true_mean)

    support = np.asarray(on.case.support(classes, query, bench.groups))
    support = np.repeat(support, len(labels) // bench.groups, axis=0)
    is_label = np.any(np.asarray(labels)[:, :, None] == np.arange(classes.num_classes), axis=1)
    terms = np.where(support | is_label, np.exp(np.asarray(everything, np.float64)), 0.0)
    check_mean(
        normaliser,
        terms.sum(axis=1),
        delta=on.case.delta,
        seed=21,
        clock=on.clock,
        large=sampler.facts.law_over != "draw",
        name_of=lambda index: f"the normaliser of example {index[0]}",
    )


LIKELIHOOD_LAWS: dict[str, Law] = {
    "more_hits": Law(
        0,
        "samples that are labels without a slot stay in the normaliser of a likelihood",
        "candax.losses.common.without_hits keeps them; only losses that have negatives leave them out",
        check_more_hits,
    ),
    "full_coverage": Law(
        3,
        "with every class as a candidate and expected count 1 a likelihood is the full softmax, value and gradient",
        "hits that stay in the sum, factors, and means over several labels",
        check_full_coverage,
    ),
    "correction": Law(
        3,
        "with every class as a candidate, some of them several times, a likelihood whose counts say so is the full "
        "softmax, value and gradient",
        "the sign and size of the correction by sampled_log_expected_count; for a likelihood that is meant to have "
        "none, as subset_softmax has, say corrected=False",
        check_correction,
    ),
    "small_counts": Law(
        3,
        "counts of any size correct the candidates of a likelihood in full",
        "corrections that are clipped; say corrected=False for a likelihood that is meant to have none",
        check_small_counts,
    ),
    "true_counts": Law(
        3,
        "true counts n of a likelihood are of no account, or its true logits o stand as o - log n; or they weigh the "
        "samples alone",
        "the sign and size of the correction by true_log_expected_count",
        check_true_counts,
    ),
    "all_counts": Law(
        3,
        "true logits o and sampled ones, of counts n, are those of o - log n and count 1",
        "the signs and sizes of the corrections by true_log_expected_count and sampled_log_expected_count",
        check_all_counts,
    ),
    "gradient_weights": Law(
        4,
        "the gradient weight of every class is in [-1, 1] and they sum to 0",
        "factors on the loss",
        check_gradient_weights,
    ),
    "shift": Law(
        0, "adding a constant to all logits leaves a likelihood as it is", "uses of single logits", check_shift
    ),
}
