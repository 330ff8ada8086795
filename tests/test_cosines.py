"""Rows of length 1: by hand, in both directions, and nothing bad from rows without a length; products of rows."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.cosines import as_scored, inner_products, unit


def test_rows_have_length_one_and_keep_their_direction():
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4, 5)), jnp.float32)
    got = unit(rows)
    np.testing.assert_allclose(jnp.linalg.norm(got, axis=-1), 1, rtol=1e-6)
    np.testing.assert_allclose(got * jnp.linalg.norm(rows, axis=-1, keepdims=True), rows, rtol=1e-5)


def test_gradient_is_that_of_the_quotient():
    rng = np.random.default_rng(1)
    rows, weights = rng.normal(size=(4, 3)), rng.normal(size=(4, 3))
    got = jax.grad(lambda rows: jnp.sum(unit(rows) * jnp.asarray(weights, jnp.float32)))(jnp.asarray(rows, jnp.float32))
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    along = rows / length
    wanted = (weights - np.sum(weights * along, axis=1, keepdims=True) * along) / length
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_rows_without_length_are_zeros_without_gradient():
    rows = jnp.array([[0.0, 0.0], [1e-30, 0.0], [jnp.nan, 1.0], [3.0, 4.0], [-3e38, 3e38]])
    np.testing.assert_allclose(unit(rows)[4], [-(0.5**0.5), 0.5**0.5], rtol=1e-6)  # though its square overflows
    np.testing.assert_allclose(unit(rows)[:3], 0)
    gradient = jax.grad(lambda rows: jnp.sum(unit(rows) ** 2 + unit(rows)))(rows)
    np.testing.assert_array_equal(gradient[:3], 0)
    assert np.all(np.isfinite(gradient))


def test_narrow_rows_become_float32_and_others_stay():
    assert unit(jnp.ones((2, 3), jnp.bfloat16)).dtype == jnp.float32
    rows = jnp.ones((2, 3), jnp.bfloat16)
    assert as_scored(rows, False) is rows
    np.testing.assert_allclose(as_scored(rows, True), 3**-0.5, rtol=1e-6)


def _plain(left, right):
    return jnp.einsum("gbd,gsd->gbs", left, right, preferred_element_type=jnp.float32)


@pytest.fixture(name="rows", params=[("float32", 6), ("bfloat16", 6), ("float32", 200)])
def _rows(request):
    dtype, number = request.param
    keys = jax.random.split(jax.random.key(0))
    shapes = ((3, 4, 5), (3, number, 5))
    return tuple(jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True))


def _sum_of_sines(product):
    return lambda left, right: jnp.sum(jnp.sin(product(left, right)))


@pytest.mark.parametrize("argnums", [(0,), (1,), (0, 1)])
def test_gradients_of_products_are_those_of_the_plain_product(rows, argnums):
    found, expected = (
        jax.jit(jax.value_and_grad(_sum_of_sines(product), argnums))(*rows) for product in (inner_products, _plain)
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_products_in_forward_mode_and_their_second_derivatives():
    left, right = jax.random.normal(jax.random.key(1), (1, 2, 2)), jax.random.normal(jax.random.key(2), (1, 3, 2))
    for derivative in (jax.jacfwd, jax.jacrev, jax.hessian):
        found, expected = (
            jax.jit(derivative(_sum_of_sines(product), (0, 1)))(left, right) for product in (inner_products, _plain)
        )
        chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_is_multiplied_for_what_is_held_fixed(rows):
    """A frozen side asks for one product in the gradient, not two."""
    text = str(jax.make_jaxpr(jax.grad(_sum_of_sines(inner_products), 1))(*rows))
    assert text.count("dot_general") == 2
