"""Averages of rows that are kept lazily are those of all rows in every step."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx


class Model(nnx.Module):
    def __init__(self, sampler):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(40, 4, rngs=rngs)
        self.layer = nnx.Linear(4, 4, rngs=rngs)
        self.head = cx.Head(40, table=self.words, sampler=sampler, rngs=rngs)


def test_rows_that_steps_do_not_use_have_the_same_average():
    decay, model = 0.8, Model(cx.samplers.uniform(3))
    optimizer = cx.Optimizer(model, cx.rows.averaged(optax.adam(0.1), decay))

    @nnx.jit
    def step(model, optimizer, ids):
        def loss_fn(model):
            return model.head.loss(model.layer(model.words(ids)), (ids + 1) % 40)

        loss, grads = cx.value_and_grad(loss_fn)(model)
        optimizer.update(model, grads)
        return loss

    def weights(model):
        return jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(model, nnx.Param)))

    average = weights(model)
    for number in range(12):
        step(model, optimizer, jnp.arange(2) + 3 * number % 11)
        average = jax.tree.map(lambda a, w: decay * a + (1 - decay) * w, average, weights(model))
        if number % 5 == 1:
            found = weights(cx.training.averaged_model(model, optimizer))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6), found, average)


def test_an_optimizer_without_averages_is_refused():
    head = cx.Head(10, 4, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="keeps averages"):
        cx.training.averaged_model(head, cx.Optimizer(head, optax.adam(0.1)))
    with pytest.raises(ValueError, match="decay between 0 and 1, got 1"):
        cx.rows.averaged(optax.adam(0.1), 1)
