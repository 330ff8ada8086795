"""Samplers follow training through layers 1 and 2 as they do in ``fit``: the same states after the same steps."""

from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from tests.frontdoor.models import DIM, NUM

STEPS = 20
# Keys for building a sampler's state are folded from this number.
INIT = 2**31 - 1
SAMPLERS = {
    "lsh": cx.samplers.lsh(
        num_tables=4,
        num_hashes=2,
        budget=8,
        capacity=4,
        fill="uniform",
        num_fill=4,
        update_every=3,
        pending_rows=128,
        schedule=lambda step: step == 8,
    ),
    "ivf_bq": cx.samplers.ivf_bq(6, num_centers=4, hm_num=16, num_kept=12, schedule=lambda step: step == 8),
    "learned_unigram": cx.samplers.learned_unigram(8, memory=32, uniform_share=0.5),
}


class Batch(NamedTuple):
    """Embeddings, and one label per example."""

    embeddings: Any
    labels: Any


class Identity(nnx.Module):
    """The batch holds embeddings already."""

    def __call__(self, batch):
        return jnp.asarray(batch.embeddings)


@cache
def batches():
    """An embedding points to its label, so that class vectors grow and turn; one label in three is frequent."""
    rng = np.random.default_rng(0)
    labels = np.where(rng.random((STEPS, 6, 1)) < 0.3, 5, rng.integers(0, NUM, (STEPS, 6, 1))).astype(np.int32)
    directions = rng.normal(size=(NUM, DIM))
    return [Batch(directions[of[:, 0]].astype(np.float32), of) for of in labels]


def optimizer():
    return optax.adagrad(0.5)


class Run(NamedTuple):
    """The output layer and the sampler's state after all steps, and the losses on the way."""

    classes: dict[str, Any]
    state: Any
    losses: list[float]


def make_head(name):
    counts = np.arange(1.0, NUM + 1)
    return cx.Head(NUM, DIM, sampler=SAMPLERS[name], loss=cx.losses.css, counts=counts, rngs=nnx.Rngs(0))


@cache
def by_fit(name):
    """Layer 3."""
    model = cx.models.Classifier(Identity(), make_head(name))
    run = cx.training.fit(model, cx.Optimizer(model, optimizer()), batches(), log_every=1, progress=False)
    head = model.head
    classes = {"vectors": head.vectors[...], "biases": head.biases[...]}
    return Run(classes, head.state.get_value(), [record["loss"] for record in run.records])


def by_pure_functions(name):
    """Layer 1: nothing but functions and arrays."""
    head = make_head(name)
    sampler, rows = SAMPLERS[name], cx.rows.rowwise(optimizer())
    key = jax.random.wrap_key_data(head.key_data[...])
    tables = {"vectors": head.vectors[...], "biases": head.biases[...]}
    of_arrays = partial(cx.Classes, counts=head.counts[...])
    states = {name: rows.init(table) for name, table in tables.items()}
    state = sampler.init(jax.random.fold_in(key, INIT), of_arrays(*tables.values()))

    def loss(tables, params, batch, state, key):
        classes = of_arrays(tables["vectors"], tables["biases"])
        options = {"sampler": sampler, "state": state, "key": key, "loss": cx.losses.css, "return_draw": True}
        return cx.sampled_loss(jnp.asarray(batch.embeddings), batch.labels, classes, **options)

    @jax.jit
    def train_step(tables, states, state, batch, key):
        (value, draw), grads = cx.rows.value_and_grad(loss, has_aux=True)(tables, (), batch, state, key)
        done = {name: rows.update(grads.rows[name], states[name], table) for name, table in tables.items()}
        tables = {name: of_table.table for name, of_table in done.items()}
        states = {name: of_table.state for name, of_table in done.items()}
        changed, classes = done["vectors"], of_arrays(tables["vectors"], tables["biases"])
        state = cx.rows.update_sampler(sampler, state, draw, classes, changed.ids, changed.rows)
        return tables, states, state, value

    refresh, losses = jax.jit(sampler.refresh), []
    for step, batch in enumerate(batches()):
        of_step = jax.random.fold_in(key, step)
        if sampler.schedule(step):
            classes = of_arrays(tables["vectors"], tables["biases"])
            state = refresh(state, jax.random.fold_in(of_step, INIT), classes)
        tables, states, state, value = train_step(tables, states, state, batch, of_step)
        losses.append(float(value))
    return Run(tables, state, losses)


def by_modules(name):
    """Layer 2."""
    head = make_head(name)
    by_rows = cx.Optimizer(head, optimizer())

    @nnx.jit
    def train_step(head, by_rows, batch):
        value, grads = cx.value_and_grad(lambda head: head.loss(batch.embeddings, batch.labels))(head)
        by_rows.update(head, grads)
        return value

    losses, refreshed = [], []
    for step, batch in enumerate(batches()):
        refreshed.append(cx.refresh(head, step))
        losses.append(float(train_step(head, by_rows, batch)))
    assert sum(refreshed) == any(SAMPLERS[name].schedule(step) for step in range(STEPS))
    assert int(head.draws[...]) == STEPS
    return Run({"vectors": head.vectors[...], "biases": head.biases[...]}, head.state.get_value(), losses)


@pytest.mark.parametrize("run", [by_pure_functions, by_modules])
@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_follow_training_as_they_do_in_fit(name, run):
    expected, got = by_fit(name), run(name)
    assert np.mean(expected.losses[-5:]) < np.mean(expected.losses[:5])
    np.testing.assert_allclose(got.losses, expected.losses, rtol=1e-5)
    for table in ("vectors", "biases"):
        np.testing.assert_allclose(got.classes[table], expected.classes[table], rtol=1e-6, atol=1e-6)
    leaves, structure = jax.tree.flatten(got.state)
    others, other_structure = jax.tree.flatten(expected.state)
    assert structure == other_structure
    for leaf, other in zip(leaves, others, strict=True):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            np.testing.assert_allclose(leaf, other, rtol=1e-5, atol=1e-6)
        else:
            np.testing.assert_array_equal(leaf, other)
    start = jax.tree.leaves(make_head(name).state.get_value())
    assert any(np.any(leaf != old) for leaf, old in zip(leaves, start, strict=True))


def test_a_refresh_leaves_copies_of_the_head_alive():
    head = cx.Head(NUM, DIM, sampler=cx.samplers.every(SAMPLERS["lsh"], 1), rngs=nnx.Rngs(0))
    copy, state = nnx.clone(head), nnx.state(head)
    assert cx.refresh(head, 1)
    assert np.isfinite(float(copy.loss(jnp.ones((2, DIM)), jnp.arange(2))))
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state))
    old = jax.tree.leaves(head.state.get_value())
    assert cx.refresh(head, 1, donate=True)
    assert any(leaf.is_deleted() for leaf in old)


class BodyAndHead(nnx.Module):
    def __init__(self):
        self.body = nnx.Linear(DIM, DIM, rngs=nnx.Rngs(0))
        self.head = make_head("learned_unigram")


@pytest.mark.parametrize("parts", [(), ("body", "head"), ("body",)], ids=str)
def test_a_sampler_learns_once_of_a_step_that_several_optimizers_share(parts):
    """From the optimizer that trains the class vectors; where none does, not at all."""
    model = BodyAndHead()
    filters = [nnx.All(nnx.Param, nnx.PathContains(part)) for part in parts] or [nnx.Param]
    optimizers = [cx.Optimizer(model, optimizer(), wrt=wrt) for wrt in filters]
    one, before = batches()[0], jax.tree.map(np.asarray, model.head.state.get_value())

    @nnx.jit
    def train_step(model, optimizers):
        _, grads = cx.value_and_grad(lambda model: model.head.loss(model.body(one.embeddings), one.labels))(model)
        for of_part in optimizers:
            of_part.update(model, grads)

    train_step(model, optimizers)
    learned = int(model.head.state.get_value().seen - before.seen)
    assert learned == (0 if parts == ("body",) else len(one.labels))
