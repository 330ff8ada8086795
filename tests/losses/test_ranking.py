"""Ranking: by hand in float64, its identity with complementary sum sampling, and what it keeps in memory."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import losses
from candax.base import Loss, SampledLogits
from tests.losses.problems import Example, check_by_hand, logits_of, softplus


def by_hand(example: Example, *, margin: float = np.log(49), hinge: bool = False, mean: bool = False) -> float:
    total = 0.0
    kept = example.sampled[~example.hits]
    for true in example.true:
        for sampled in kept:
            shortfall = margin - (true - sampled)
            total += max(0.0, shortfall) if hinge else float(softplus(shortfall))
    return total / len(example.true) / (len(kept) if mean else 1)


CASES = {
    "default": (losses.ranking, by_hand),
    "margin": (partial(losses.ranking, margin=0.5), partial(by_hand, margin=0.5)),
    "mean": (partial(losses.ranking, reduction="mean"), partial(by_hand, mean=True)),
    "hinge": (partial(losses.ranking, penalty="hinge", margin=1.0), partial(by_hand, hinge=True, margin=1.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_is_the_formula(name: str) -> None:
    check_by_hand(*CASES[name])


def test_one_uniform_sample_from_the_complement_is_css() -> None:
    """Every label with every other class: value and gradient of css in the paper's scheme with S = 1."""
    num_classes = 5
    labels, ids = (part.ravel()[:, None] for part in np.indices((num_classes, num_classes)))
    labels, ids = labels[labels != ids][:, None], ids[labels != ids][:, None]
    classes = jnp.asarray(np.random.default_rng(0).normal(size=(len(ids), num_classes)), jnp.float32)

    def of(loss: Loss, expected_count: float) -> tuple[np.ndarray, np.ndarray]:
        def total(classes: jax.Array) -> tuple[jax.Array, jax.Array]:
            values = loss(logits_of(classes, labels, ids, np.full(num_classes, expected_count)))
            return jnp.sum(values), values

        (_, values), gradient = jax.value_and_grad(total, has_aux=True)(classes)
        return values, gradient

    ranked = of(losses.ranking, 0.123)  # counts are not used
    for other in (
        of(partial(losses.css, complement="redraw", num_kept=1), 1 / num_classes),  # drawn from all classes
        of(losses.css, 1 / (num_classes - 1)),  # drawn from the complement itself
    ):
        for got, wanted in zip(ranked, other, strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_classes", [1, 2])
def test_margin_of_few_classes_is_zero(num_classes: int) -> None:
    yes = jnp.ones((1, 1), bool)
    zero = jnp.zeros((1, 1))
    logits = SampledLogits(zero, zero, yes, zero, zero, yes, ~yes, num_classes)
    np.testing.assert_allclose(losses.ranking(logits), [np.log(2)], rtol=1e-6)


def test_pairs_are_not_kept() -> None:
    b, t, s = 32, 32, 1024
    shapes = jnp.zeros((b, t)), jnp.zeros((b, s))
    mask_true, mask_sampled = (jnp.ones(part.shape, bool) for part in shapes)

    def total(true: jax.Array, sampled: jax.Array) -> jax.Array:
        logits = SampledLogits(true, true, mask_true, sampled, sampled, mask_sampled, ~mask_sampled, 100)
        return jnp.sum(losses.ranking(logits))

    compiled = jax.jit(jax.grad(total, (0, 1))).lower(*shapes).compile()
    memory = compiled.memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < b * t * s * 4 / 4
