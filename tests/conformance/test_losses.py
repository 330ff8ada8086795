"""Every loss of the table obeys every law."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from candax.base import Loss, SampledLogits
from tests.conformance import loss_laws as laws
from tests.conformance.tables import LOSSES, SAMPLERS, classes_of, make_query

LIKELIHOODS = [name for name, case in LOSSES.items() if case.likelihood]
UNBIASED = [name for name, case in LOSSES.items() if case.unbiased_normaliser]


@pytest.mark.parametrize(
    "check",
    [
        laws.check_shape,
        laws.check_masked_do_not_matter,
        laws.check_finite_at_the_edges,
        laws.check_order_does_not_matter,
        laws.check_examples_stand_alone,
    ],
)
@pytest.mark.parametrize("name", LOSSES)
def test_law(check: Callable[[Loss], None], name: str) -> None:
    check(LOSSES[name].loss)


@pytest.mark.parametrize(
    "check", [laws.check_full_coverage, laws.check_gradient_weights, laws.check_shift_does_not_matter]
)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihood_law(check: Callable[[Loss], None], name: str) -> None:
    check(LOSSES[name].loss)


# One with replacement, one without, and one that is correct over its index only.
QUICK_SAMPLERS = ("log_uniform", "uniform distinct", "lsh")


# A law over the batch says nothing about the normaliser of one batch.
@pytest.mark.parametrize(
    "sampler_name",
    [
        name if name in QUICK_SAMPLERS else pytest.param(name, marks=pytest.mark.slow)
        for name, case in SAMPLERS.items()
        if case.factory(case.groups[0]).facts.law_over != "batch"
    ],
)
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_normaliser(name: str, sampler_name: str) -> None:
    case = SAMPLERS[sampler_name]
    classes = classes_of(case)
    query = make_query(jax.random.key(3), classes)
    num_groups = case.groups[0]
    groups = query.embeddings.shape[0] if num_groups is None else num_groups
    support = case.support(classes, query, groups)
    support = np.repeat(support, query.embeddings.shape[0] // groups, axis=0)
    laws.check_unbiased_normaliser(LOSSES[name].loss, case.factory(num_groups), support, classes)


def _floats(width: int, *, counts: bool = False) -> st.SearchStrategy[np.ndarray]:
    elements = st.floats(-80, 80, width=32) | st.sampled_from([-80.0, 0.0, 80.0])
    if counts:
        elements = st.floats(-80, 20, width=32) | st.sampled_from([0.0, -np.inf])
    return arrays.arrays(np.float32, (2, width), elements=elements)


def _booleans(width: int) -> st.SearchStrategy[np.ndarray]:
    return arrays.arrays(bool, (2, width))


FIELDS = st.tuples(
    _floats(2), _floats(2, counts=True), _booleans(2), _floats(4), _floats(4, counts=True), _booleans(4), _booleans(4)
)
VALUE_AND_GRADIENT = {
    name: jax.jit(jax.value_and_grad(lambda logits, loss=case.loss: jnp.sum(loss(logits)), allow_int=True))
    for name, case in LOSSES.items()
}


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(fields=FIELDS)
def test_finite_for_any_input(name: str, fields: tuple[np.ndarray, ...]) -> None:
    arrays_of_fields: list[Any] = [*map(jnp.asarray, fields), 1000]
    logits = SampledLogits(*arrays_of_fields)
    value, gradient = VALUE_AND_GRADIENT[name](logits)
    assert np.isfinite(value)
    assert np.all(np.isfinite(gradient.true))
    assert np.all(np.isfinite(gradient.sampled))


@pytest.mark.parametrize("name", LOSSES)
def test_counts_carry_no_gradient(name: str) -> None:
    """Corrections are constants: an adaptive sampler's counts must not be trained through the loss."""
    logits = laws.make_logits(0)

    def total(true_count: jax.Array, sampled_count: jax.Array) -> jax.Array:
        counts: dict[str, Any] = {"true_log_expected_count": true_count, "sampled_log_expected_count": sampled_count}
        return jnp.sum(LOSSES[name].loss(dataclasses.replace(logits, **counts)))

    of_counts = jax.grad(total, argnums=(0, 1))(logits.true_log_expected_count, logits.sampled_log_expected_count)
    assert all(np.all(np.asarray(part) == 0) for part in of_counts)
