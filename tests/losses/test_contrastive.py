"""Sigmoid losses and BlackOut: by hand in float64, and what is known of their optima by enumerating all draws."""

import dataclasses
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize

import candax as cx
from candax import losses
from candax.base import Loss
from candax.losses import common
from tests.losses.problems import Example, check_by_hand, draws_of, logits_of, make, softplus


def sigmoid_by_hand(
    example: Example, *, corrected: bool = False, log_z: float = 0.0, hits: bool = False, mean: bool = False
) -> float:
    shift = log_z + (example.true_count if corrected else 0.0)
    kept = np.ones_like(example.hits) if hits else ~example.hits
    negative = softplus(example.sampled[kept] - log_z - corrected * example.sampled_count[kept])
    return float(np.mean(softplus(-(example.true - shift))) + (np.mean(negative) if mean else np.sum(negative)))


def blackout_by_hand(example: Example, *, corrected: bool = True) -> float:
    true = np.exp(example.true - corrected * example.true_count)
    sampled = np.exp(example.sampled - corrected * example.sampled_count)[~example.hits]
    total = true.sum() + sampled.sum()
    return float(-np.mean(np.log(true / total)) - np.sum(np.log(1 - sampled / total)))


def gbce_by_hand(example: Example, *, calibration: float) -> float:
    """The paper's beta, in its own form."""
    kept = example.sampled[~example.hits]
    alpha = len(kept) / 49
    beta = alpha * (calibration * (1 - 1 / alpha) + 1 / alpha)
    return float(beta * np.mean(softplus(-example.true)) + np.sum(softplus(kept)))


def one_vs_all_by_hand(example: Example) -> float:
    kept = ~example.hits
    stands_for = np.exp(-example.sampled_count[kept])
    return float(np.sum(softplus(-example.true)) + np.sum(stands_for * softplus(example.sampled[kept])))


def smoothed_by_hand(example: Example, *, smoothing: float) -> float:
    """The cross-entropy with a target of which the samples that are no hits share a part."""
    kept = example.sampled[~example.hits]
    towards = np.mean(example.true) - np.mean(kept) if len(kept) else 0.0
    return sigmoid_by_hand(example) + smoothing * float(towards)


CASES = {
    "one_vs_all": (losses.one_vs_all, one_vs_all_by_hand),
    "with_smoothing": (
        losses.with_smoothing(losses.negative_sampling, 0.3),
        partial(smoothed_by_hand, smoothing=0.3),
    ),
    "nce": (losses.nce, partial(sigmoid_by_hand, corrected=True, hits=True)),
    "nce without hits": (
        partial(losses.nce, remove_hits=True, log_normalizer=1.5),
        partial(sigmoid_by_hand, corrected=True, log_z=1.5),
    ),
    "negative_sampling": (losses.negative_sampling, sigmoid_by_hand),
    "negative_sampling mean": (
        partial(losses.negative_sampling, reduction="mean"),
        partial(sigmoid_by_hand, mean=True),
    ),
    "negative_sampling with hits": (
        partial(losses.negative_sampling, remove_hits=False),
        partial(sigmoid_by_hand, hits=True),
    ),
    "blackout": (losses.blackout, blackout_by_hand),
    "gbce": (losses.gbce, partial(gbce_by_hand, calibration=0.75)),
    "gbce plain": (partial(losses.gbce, calibration=0.0), sigmoid_by_hand),
}


@pytest.mark.parametrize("name", CASES)
def test_is_the_formula(name: str) -> None:
    check_by_hand(*CASES[name])


# Enumeration: a distribution of labels p, a proposal q, and every label with every draw.
P = np.array([0.5, 0.1, 0.15, 0.25])
Q = np.array([0.1, 0.4, 0.3, 0.2])


def expected_gradient(loss: Loss, classes: np.ndarray, q: np.ndarray, slots: int) -> np.ndarray:
    """Of E over labels from P and draws from q, with respect to the logits of the 4 classes."""
    ids, probability = draws_of(q, slots)
    labels, rows = np.divmod(np.arange(4 * len(ids)), len(ids))
    weights = jnp.asarray(P[labels] * probability[rows], jnp.float32)

    def expected(classes: jax.Array) -> jax.Array:
        tiled = jnp.broadcast_to(classes, (len(labels), 4))
        return weights @ loss(logits_of(tiled, labels[:, None], ids[rows], slots * q))

    return np.asarray(jax.grad(expected)(jnp.asarray(classes, jnp.float32)))


def test_nce_is_at_rest_at_the_true_distribution() -> None:
    np.testing.assert_allclose(expected_gradient(losses.nce, np.log(P), Q, 3), 0, atol=1e-7)
    # Not where the model is off by a constant, nor without hits: the test can fail.
    assert np.abs(expected_gradient(losses.nce, np.log(P) + 0.1, Q, 3)).max() > 1e-3
    assert np.abs(expected_gradient(partial(losses.nce, remove_hits=True), np.log(P), Q, 3)).max() > 1e-3


def test_one_vs_all_is_at_rest_where_sigmoid_is_the_probability() -> None:
    np.testing.assert_allclose(expected_gradient(losses.one_vs_all, np.log(P / (1 - P)), Q, 3), 0, atol=1e-6)
    assert np.abs(expected_gradient(losses.one_vs_all, np.log(P), Q, 3)).max() > 1e-3


def test_nce_with_the_right_normaliser_is_at_rest_too() -> None:
    def loss(log_z: jax.Array, classes: jax.Array) -> jax.Array:
        ids, probability = draws_of(Q, 2)
        labels, rows = np.divmod(np.arange(4 * len(ids)), len(ids))
        tiled = jnp.broadcast_to(classes, (len(labels), 4))
        values = losses.nce(logits_of(tiled, labels[:, None], ids[rows], 2 * Q), log_normalizer=log_z)
        return jnp.asarray(P[labels] * probability[rows], jnp.float32) @ values

    gradient = jax.grad(loss, (0, 1))
    for part in gradient(jnp.float32(0.7), jnp.asarray(np.log(P) + 0.7, jnp.float32)):
        np.testing.assert_allclose(part, 0, atol=1e-7)
    assert gradient(jnp.float32(0.0), jnp.asarray(np.log(P) + 0.7, jnp.float32))[0] < -1e-2  # z must grow


def test_log_normalizer_may_differ_by_example() -> None:
    logits, _ = make()
    log_z = jnp.array([0.3, -1.0, 2.0])
    shifted = dataclasses.replace(logits, true=logits.true - log_z[:, None], sampled=logits.sampled - log_z[:, None])
    np.testing.assert_allclose(losses.nce(logits, log_normalizer=log_z), losses.nce(shifted), rtol=1e-6)


def test_calibrated_gbce_is_at_rest_where_sigmoid_is_the_probability() -> None:
    """One negative uniform over the other 3 classes: all of them enumerated."""
    labels, others = np.divmod(np.arange(12), 3)
    ids = np.where(others < labels, others, others + 1)
    weights = jnp.asarray(P[labels] / 3, jnp.float32)

    def expected(classes: jax.Array, calibration: float) -> jax.Array:
        tiled = jnp.broadcast_to(classes, (12, 4))
        values = losses.gbce(logits_of(tiled, labels[:, None], ids[:, None], np.ones(4)), calibration=calibration)
        return weights @ values

    logit = jnp.asarray(np.log(P / (1 - P)), jnp.float32)
    np.testing.assert_allclose(jax.grad(expected)(logit, 1.0), 0, atol=1e-7)
    assert np.all(np.asarray(jax.grad(expected)(logit, 0.0)) < -1e-2)  # plain negative sampling: overconfident


def test_gbce_refuses_a_wrong_calibration() -> None:
    with pytest.raises(ValueError, match="calibration"):
        losses.gbce(make()[0], calibration=1.5)


@pytest.mark.parametrize(
    ("loss", "log_k", "without_hits"),
    [
        (partial(losses.negative_sampling, remove_hits=False), np.log(2), False),
        (partial(losses.negative_sampling, remove_hits=False, reduction="mean"), 0.0, False),
        (losses.negative_sampling, np.log(2), True),
    ],
)
def test_optimum_of_negative_sampling(loss: Loss, log_k: float, without_hits: bool) -> None:
    """Full-rank factors of 3 inputs and 4 classes, unigram noise, 2 draws, all 192 events: PMI - log k."""
    rng = np.random.default_rng(0)
    joint = rng.dirichlet(np.full(12, 3.0)).reshape(3, 4)
    unigram, of_input = joint.sum(axis=0), joint.sum(axis=1, keepdims=True)
    ids, probability = draws_of(unigram, 2)
    inputs, labels, rows = (part.ravel() for part in np.indices((3, 4, len(ids))))

    with jax.enable_x64(True):
        weights = jnp.asarray(joint[inputs, labels] * probability[rows])

        @jax.jit
        def expected(factors: jax.Array) -> jax.Array:
            classes = factors[:9].reshape(3, 3) @ factors[9:].reshape(4, 3).T
            return weights @ loss(logits_of(classes[inputs], labels[:, None], ids[rows], 2 * unigram))

        found = minimize(
            jax.value_and_grad(expected), 0.5 * rng.normal(size=21), jac=True, method="BFGS", options={"gtol": 1e-9}
        )
    optimum = found.x[:9].reshape(3, 3) @ found.x[9:].reshape(4, 3).T
    pmi = np.log(joint / (of_input * unigram))
    wanted = pmi - log_k - (np.log1p(-joint / of_input) if without_hits else 0.0)
    np.testing.assert_allclose(optimum, wanted, atol=1e-5)


def test_blackout_ignores_the_scale_of_q_and_under_uniform_q_also_q() -> None:
    logits, fields = make()
    scaled = dataclasses.replace(
        logits,
        true_log_expected_count=logits.true_log_expected_count + 3,
        sampled_log_expected_count=logits.sampled_log_expected_count + 3,
    )
    np.testing.assert_allclose(losses.blackout(scaled), losses.blackout(logits), rtol=1e-5)

    uniform = dataclasses.replace(
        logits, true_log_expected_count=jnp.full((3, 2), -4.0), sampled_log_expected_count=jnp.full((3, 4), -4.0)
    )
    for b, value in enumerate(losses.blackout(uniform)):
        true, sampled = fields["true_mask"][b], fields["sampled_mask"][b]
        example = Example(
            *(fields[name][b][true] for name in ("true", "true_count")),
            *(fields[name][b][sampled] for name in ("sampled", "sampled_count", "hits")),
        )
        np.testing.assert_allclose(value, blackout_by_hand(example, corrected=False), rtol=1e-5)


@pytest.mark.parametrize("lead", [-30.0, -3.0, 1.0, 1.2, 3.0, 30.0, 80.0])
def test_blackout_is_exact_when_one_sample_has_nearly_all(lead: float) -> None:
    """p(s) rounds to 1 in float32 from a lead of 17 on: its complement must come from the others."""
    classes = jnp.array([[0.0, lead, -1.0]])

    def loss(classes: jax.Array) -> jax.Array:
        return losses.blackout(logits_of(classes, np.array([[0]]), np.array([[1, 2]]), np.ones(3)))[0]

    value, gradient = jax.value_and_grad(loss)(classes)
    logits = np.array([0.0, lead, -1.0])

    def by_hand(logits: np.ndarray) -> float:
        total = np.logaddexp.reduce(logits)
        others = np.logaddexp(logits[0], logits[2]), np.logaddexp(logits[0], logits[1])
        return float(3 * total - logits[0] - sum(others))

    np.testing.assert_allclose(value, by_hand(logits), rtol=1e-5)
    wanted = [(by_hand(logits + step) - by_hand(logits - step)) / 2e-5 for step in 1e-5 * np.eye(3)]
    np.testing.assert_allclose(gradient[0], wanted, rtol=1e-4, atol=1e-5)


def test_softplus_is_right_to_its_last_bits():
    x = np.concatenate([np.linspace(-100, 100, 4001), np.linspace(-1, 1, 2001)]).astype(np.float32)
    exact = np.logaddexp(0, x.astype(np.float64))
    np.testing.assert_allclose(jax.jit(common.softplus)(x), exact, rtol=6e-7, atol=1e-37)
    slope = jax.vmap(jax.grad(common.softplus))(x)
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-x.astype(np.float64))), rtol=1e-5, atol=1e-37)


def test_one_normaliser_for_each_example_is_refused_in_blocks():
    classes, labels = cx.Classes(jnp.ones((9, 2))), jnp.zeros(8, jnp.int32)
    sampler = cx.samplers.uniform(3)
    state, loss = sampler.init(jax.random.key(0), classes), partial(losses.nce, log_normalizer=jnp.arange(8.0))
    options = {"sampler": sampler, "state": state, "key": jax.random.key(1)}
    cx.sampled_loss(jnp.ones((8, 2)), labels, classes, loss=loss, block_size=8, **options)
    with pytest.raises(ValueError, match="expected nce with one log_normalizer where block_size=4 of 8"):
        cx.sampled_loss(jnp.ones((8, 2)), labels, classes, loss=loss, block_size=4, **options)
