"""The classic importance sampling loss: by hand, by enumeration, and where it is meant to be unstable."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from candax import losses
from tests.losses.problems import Example, check_by_hand, draws_of, logits_of, make


def by_hand(example: Example) -> float:
    weights = np.exp(-example.sampled_count)
    return float(np.log(np.sum(weights * np.exp(example.sampled))) - example.true.mean())


def test_is_the_formula() -> None:
    check_by_hand(losses.importance_sampling, by_hand)


def test_normaliser_is_unbiased_over_all_draws() -> None:
    classes, q = np.array([0.5, -1.0, 1.2, 0.1]), np.array([0.4, 0.1, 0.2, 0.3])
    ids, probability = draws_of(q, 3)
    tiled = jnp.tile(jnp.asarray(classes, jnp.float32), (len(ids), 1))
    values = losses.importance_sampling(logits_of(tiled, np.full((len(ids), 1), 2), ids, 3 * q))
    normaliser = np.exp(np.asarray(values, np.float64) + classes[2])
    np.testing.assert_allclose(probability @ normaliser, np.exp(classes).sum(), rtol=1e-5)


def test_true_class_is_not_in_the_sum_and_hits_are() -> None:
    """A dominant true class that was not drawn: an estimated probability above 1, where css stays below."""
    classes = jnp.tile(jnp.array([9.0, 0.0, 0.0, 0.0]), (2, 1))
    logits = logits_of(classes, np.zeros((2, 1), int), np.array([[1, 2], [0, 2]]), np.full(4, 0.5))
    np.testing.assert_allclose(losses.importance_sampling(logits)[0], np.log(4) - 9, rtol=1e-6)
    np.testing.assert_allclose(losses.importance_sampling(logits)[1], np.log(2 + 2 * np.exp(9)) - 9, rtol=1e-5)
    assert np.all(np.asarray(losses.css(logits)) > 0)


def test_without_candidates_an_example_costs_nothing() -> None:
    logits, _ = make()
    lonely = dataclasses.replace(logits, sampled_mask=logits.sampled_mask.at[1].set(False))
    gradient = jax.grad(lambda logits: jnp.sum(losses.importance_sampling(logits)), allow_int=True)(lonely)
    assert np.all(np.asarray(gradient.true)[1] == 0)
    assert np.all(np.asarray(gradient.sampled)[1] == 0)
    values, others = losses.importance_sampling(lonely), losses.importance_sampling(logits)
    assert values[1] == 0
    np.testing.assert_array_equal(values[::2], others[::2])
