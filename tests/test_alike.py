"""What is made of the same arguments is the same, and finds what was compiled for it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType

import candax as cx
from candax.alike import made_once
from candax.recipes.links.building import regularised
from candax.recipes.words.training import word2vec_step_loss
from candax.training.trainer import compiled_step, loss_of_labels

MADE = {
    "uniform": lambda: cx.samplers.uniform(5),
    "by name": lambda: cx.samplers.log_uniform(num_sampled=4, num_groups=2),
    "lsh": lambda: cx.samplers.lsh(hash=cx.samplers.simhash(), num_tables=2, num_hashes=2, budget=8),
    "mixture of a list": lambda: cx.samplers.mixture([cx.samplers.in_batch(), cx.samplers.uniform(5)]),
    "a shard's": lambda: cx.samplers.uniform(8).share(2),
    "smoothed": lambda: cx.losses.with_smoothing(cx.losses.css, 0.1),
}


@pytest.mark.parametrize("name", MADE)
def test_made_of_the_same_it_is_the_same(name):
    assert MADE[name]() is MADE[name]()


def test_other_arguments_make_others_and_those_without_a_hash_new_ones():
    assert cx.samplers.uniform(5) is not cx.samplers.uniform(6)
    make = made_once(lambda value: [value])
    assert make(1) is make(1)
    assert make(1) is not make(True)
    assert make(1) is not make(1.0)
    counts = np.ones(3)
    assert make(counts) is not make(counts)
    with pytest.raises(ValueError, match="expected num_sampled to be an integer"):
        cx.samplers.uniform(True)


def test_nothing_of_a_trace_is_kept():
    def make(_):
        return cx.Head(9, 2, sampler=cx.samplers.midx(3, num_codewords=2), rngs=nnx.Rngs(0)).vectors[...]

    jax.eval_shape(make, 0)
    assert np.isfinite(make(0)).all()


class Model(nnx.Module):
    def __init__(self, traced, seed):
        sampler, loss = cx.samplers.log_uniform(3, ids_ranked=True), cx.losses.with_smoothing(cx.losses.css, 0.1)
        self.head = cx.Head(9, 2, sampler=sampler, loss=loss, rngs=nnx.Rngs(seed))
        self.trace = traced

    def __call__(self, batch):
        self.trace()
        return batch["inputs"]


def test_a_second_training_with_the_same_settings_is_not_compiled_again():
    traced, after = [], []
    trace = functools.partial(traced.append, 1)
    adam = optax.adam(0.1)
    batches = [{"inputs": np.ones((4, 2), np.float32), "labels": np.arange(4)}]
    for seed in range(2):
        model = Model(trace, seed)
        cx.training.fit(model, cx.Optimizer(model, adam, seed=seed), batches, num_steps=2, progress=False)
        after.append(len(traced))
    assert 0 < after[0] == after[1]


class Unhashable(list):
    """A function of an optimizer, in an object without a hash."""

    def __call__(self, *args):
        return self[0](*args)


def test_what_an_optimizer_does_to_rows_is_looked_at_once_where_it_can_be_known_again():
    adam = optax.adam(0.1)
    unhashable = optax.GradientTransformation(*(Unhashable([function]) for function in adam))
    for tx, kept in ((adam, True), (optax.adam(0.1), True), (unhashable, False)):
        rows = [cx.Optimizer(cx.Head(9, 2, rngs=nnx.Rngs(0)), tx).by_rows[("vectors",)] for _ in range(2)]
        assert (rows[0] is rows[1]) == kept


def test_an_optimizer_that_was_made_in_a_trace_leaves_nothing_of_it():
    adam = optax.adam(0.1)

    def make():
        head = cx.Head(9, 3, rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, adam)

    nnx.eval_shape(make)
    head, optimizer = make()
    head.use(cx.samplers.uniform(4), cx.losses.css)
    labels = np.arange(4)
    optimizer.update(head, cx.value_and_grad(lambda head: head.loss(np.ones((4, 3), np.float32), labels))(head)[1])
    assert int(optimizer.step[...]) == 1


def test_optimizers_made_alike_are_of_the_mesh_that_is_set():
    adamw, ids = optax.adamw(0.1), jnp.array([1])
    for kind in (AxisType.Auto, AxisType.Explicit):
        with jax.set_mesh(jax.make_mesh((1,), ("data",), (kind,))):
            model = nnx.Dict(one=cx.Embed(9, 2, rngs=nnx.Rngs(0)), other=cx.Embed(9, 2, rngs=nnx.Rngs(1)))
            optimizer = cx.Optimizer(model, adamw)
            grads = cx.value_and_grad(lambda model: jnp.sum(model.one(ids) + model.other(ids)))(model)[1]
            nnx.eval_shape(lambda *of: of[1].update(of[0], of[2]), model, optimizer, grads)


def test_steps_of_the_losses_here_are_kept_and_those_of_the_user_s_made_anew():
    @functools.wraps(word2vec_step_loss)
    def wrapped(model, batch):
        return 2 * word2vec_step_loss(model, batch)

    kept = {"default": loss_of_labels, "of words": word2vec_step_loss, "of links": regularised("n3", 0.1)}
    new = {"function": lambda model, batch: 0.0, "wrapped": wrapped, "partial": functools.partial(word2vec_step_loss)}
    for name, loss_fn in {**kept, **new}.items():
        assert (compiled_step(loss_fn, 1) is compiled_step(loss_fn, 1)) == (name in kept), name
