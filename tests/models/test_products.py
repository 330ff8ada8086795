"""Inner products set by set: values, first and second derivatives as of the plain product."""

import chex
import jax
import jax.numpy as jnp
import pytest

from candax.models.products import inner_products


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
def test_gradients_are_those_of_the_plain_product(rows, argnums):
    found, expected = (
        jax.jit(jax.value_and_grad(_sum_of_sines(product), argnums))(*rows) for product in (inner_products, _plain)
    )
    chex.assert_trees_all_close(found, expected, rtol=1e-5, atol=1e-5)


def test_forward_mode_and_second_derivatives():
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
