"""SGD whose updates are added as they came: equal to optax.sgd, nothing written for bad steps, no sorting, no copy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.rows import adding_sgd

IDS = jnp.array([[3, 1, 3], [-1, 3, 0]])


class Words(nnx.Module):
    """A table that is looked up, and a parameter beside it."""

    def __init__(self, num_rows=5):
        self.words = cx.Embed(num_rows, 2, rngs=nnx.Rngs(0))
        self.scale = nnx.Param(jnp.float32(2))


def loss_of(model, ids=IDS, factor=1.0):
    rows = model.words(ids) * model.scale[...]
    return factor * jnp.sum(jnp.sin(rows) * jnp.arange(rows.size).reshape(rows.shape))


@nnx.jit
def step(model, optimizer, ids, factor):
    """Compiled: op by op it would take ten times as long."""
    parts = [cx.value_and_grad(lambda model, part=part: loss_of(model, part, factor))(model)[1] for part in ids]
    optimizer.update(model, cx.accumulate(parts) if len(parts) > 1 else parts[0])


def trained(tx, *, ids=(IDS,), factor=1.0, steps=2, **options):
    model = Words()
    optimizer = cx.Optimizer(model, tx, **options)
    for _ in range(steps):
        step(model, optimizer, ids, factor)
    return model, optimizer


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1}, {"ids": (IDS[:1], IDS[1:])}], ids=str)
def test_it_is_sgd(options):
    rate = optax.linear_schedule(0.1, 0.01, 3)
    ours, theirs = trained(adding_sgd(rate), **options)[0], trained(optax.sgd(rate), **options)[0]
    np.testing.assert_allclose(ours.words.embedding[...], theirs.words.embedding[...], rtol=1e-5)
    np.testing.assert_allclose(ours.scale[...], theirs.scale[...], rtol=1e-6)
    np.testing.assert_array_equal(ours.words.embedding[2], Words().words.embedding[2])


@pytest.mark.parametrize(
    "bad", [{"factor": jnp.nan}, {"factor": 3e38}, {"ids": (jnp.array([[1, 5, 1], [1, 2, 3]]),)}], ids=str
)
def test_a_bad_step_writes_nothing(bad):
    """Neither rows nor counts, of a loss or of gradients that are not finite and of an id out of range."""
    model, optimizer = trained(adding_sgd(optax.linear_schedule(0.1, 0, 9)), steps=1, **bad)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model), nnx.state(Words()))
    assert int(optimizer.skipped[...]) == 1
    assert all(int(leaf) == 0 for leaf in jax.tree.leaves(optimizer.table_states.get_value()))


@pytest.mark.parametrize("make", [optax.sgd, adding_sgd])
def test_what_counts_for_nothing_may_have_a_gradient_of_nan(make):
    """As that of the length of the zeros which an id of -1 gives."""
    words = cx.Embed(5, 2, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(words, make(0.1))
    before = np.asarray(words.embedding[...])

    @nnx.jit
    def step(words, optimizer):
        loss = lambda words: jnp.sum(jnp.linalg.norm(words(jnp.array([3, -1])), axis=-1))  # noqa: E731
        optimizer.update(words, cx.value_and_grad(loss)(words)[1])

    step(words, optimizer)
    assert int(optimizer.skipped[...]) == 0
    np.testing.assert_allclose(words.embedding[3], before[3] * (1 - 0.1 / np.linalg.norm(before[3])), rtol=1e-5)
    np.testing.assert_array_equal(np.delete(words.embedding[...], 3, 0), np.delete(before, 3, 0))


def test_a_step_neither_sorts_nor_copies():
    def compiled(num_rows):
        model = Words(num_rows)
        graph, state = nnx.split((model, cx.Optimizer(model, adding_sgd(0.1))))

        def one_step(state):
            model, optimizer = nnx.merge(graph, state)
            _, grads = cx.value_and_grad(loss_of)(model)
            optimizer.update(model, grads)
            return nnx.state((model, optimizer))

        return jax.jit(one_step, donate_argnums=0).lower(state).compile()

    small, large = compiled(10**3), compiled(10**5)
    text = large.as_text()
    assert " sort(" not in text
    assert not [line for line in text.splitlines() if "copy(" in line and "f32[100000" in line]
    assert large.memory_analysis().temp_size_in_bytes == small.memory_analysis().temp_size_in_bytes
