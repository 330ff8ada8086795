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


def test_weights_that_another_optimizer_trains_have_no_average():
    model = TwoTables()
    by_kind = {"first": cx.rows.averaged(optax.sgd(0.1), 0.9), "second": optax.sgd(0.1)}
    of = lambda path, _: "first" if "first" in jax.tree_util.keystr(path) else "second"  # noqa: E731
    kinds = lambda params: jax.tree_util.tree_map_with_path(of, params)  # noqa: E731
    optimizer = cx.Optimizer(model, optax.multi_transform(by_kind, kinds))
    optimizer.update(model, cx.value_and_grad(lambda model: one_table(model, "first"))(model)[1])
    found = cx.training.averaged_model(model, optimizer)
    np.testing.assert_allclose(found.first.embedding[...], model.first.embedding[...] + 0.09, rtol=1e-6)
    np.testing.assert_array_equal(found.second.embedding[...], model.second.embedding[...])


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_averages_of_narrow_weights_are_of_what_is_stored(rounding):
    """Most of an update of .001 is lost to rounding, in a row of a table and in a weight beside it."""
    transformation = cx.rows.averaged(optax.sgd(1e-3), 0.9)
    by_rows = cx.rows.rowwise(transformation, rounding=rounding)
    table = weight = jnp.ones((2, 2), jnp.bfloat16)

    @jax.jit  # in which XLA leaves out conversions to bfloat16 and back
    def step(table, state, weight, of_weight, key):
        table, state, *_ = by_rows.update(-jnp.ones((1, 2)), state, table, jnp.array([1]), key=key)
        updates, of_weight = transformation.update(-jnp.array([[1, 4], [1, 4]], jnp.bfloat16), of_weight, weight)
        return table, state, optax.apply_updates(weight, updates), of_weight

    state, of_weight = by_rows.init(table), transformation.init(weight)
    average = np.ones((2, 2, 2))
    for number in range(40):
        table, state, weight, of_weight = step(table, state, weight, of_weight, jax.random.key(number))
        average = 0.9 * average + 0.1 * np.array([table, weight], np.float64)
    for got, of, expected in zip((table, weight), (state, of_weight), average, strict=True):
        lag = cx.rows.averaging.left(of.lag, of.step - of.last, of.decay)
        np.testing.assert_allclose(got + lag, expected, rtol=1e-6)


class TwoTables(nnx.Module):
    """Of which each step uses one."""

    def __init__(self):
        self.first, self.second = (cx.Embed(4, 2, rngs=nnx.Rngs(seed)) for seed in (0, 1))


def one_table(model, name):
    return jnp.sum(getattr(model, name)(jnp.arange(4)))


@nnx.jit(static_argnames="name")
def step_of_one(model, optimizer, name):
    optimizer.update(model, cx.value_and_grad(lambda model: one_table(model, name))(model)[1])


@pytest.mark.parametrize("make", [optax.sgd, cx.rows.adding_sgd])
def test_schedules_go_on_in_steps_that_do_not_use_a_table(make):
    model = TwoTables()
    optimizer = cx.Optimizer(model, make(lambda count: 1.0 * (count < 1)))
    before = np.asarray(model.second.embedding[...])
    step_of_one(model, optimizer, "first")
    step_of_one(model, optimizer, "second")
    np.testing.assert_array_equal(model.second.embedding[...], before)


def test_averages_go_on_in_steps_that_do_not_use_a_table():
    model = TwoTables()
    optimizer = cx.Optimizer(model, cx.rows.averaged(optax.sgd(1.0), 0.5))
    before = np.asarray(model.second.embedding[...])
    for name in ("second", "first", "first", "first"):
        step_of_one(model, optimizer, name)
    average = cx.training.averaged_model(model, optimizer).second.embedding[...]
    np.testing.assert_allclose(average, before - 1 + 0.5**4, atol=1e-6)


def compiled_step(num_rows, name):
    model = TwoTables()
    model.second = cx.Embed(num_rows, 2, rngs=nnx.Rngs(1))
    graph, state = nnx.split((model, cx.Optimizer(model, cx.rows.averaged(optax.adam(0.1), 0.5))))

    def step(state):
        model, optimizer = nnx.merge(graph, state)
        optimizer.update(model, cx.value_and_grad(lambda model: one_table(model, name))(model)[1])
        return nnx.state((model, optimizer))

    return jax.jit(step, donate_argnums=0).lower(state).compile()


def test_a_table_that_a_step_does_not_use_costs_nothing():
    def scratch(num_rows):
        compiled = compiled_step(num_rows, "first")
        large = [line for line in compiled.as_text().splitlines() if f"[{num_rows}" in line and " = " in line]
        assert all(" parameter(" in line or " tuple(" in line for line in large), large
        return compiled.memory_analysis().temp_size_in_bytes

    assert scratch(10**3 + 7) == scratch(10**5 + 7)


def test_what_averages_keep_of_each_row_is_written_in_place():
    assert compiled_step(10**5 + 7, "second").memory_analysis().temp_size_in_bytes < 10**5
