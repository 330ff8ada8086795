"""What is made of the same arguments is the same, and finds what was compiled for it."""

import functools

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx
from candax.alike import made_once

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


def test_a_second_training_with_the_same_settings_is_not_compiled_again():
    traced, after = [], []

    def loss_fn(model, batch):
        traced.append(1)
        return model.loss(batch["inputs"], batch["labels"])

    adam = optax.adam(0.1)
    batches = [{"inputs": np.ones((4, 2), np.float32), "labels": np.arange(4)}]
    for seed in range(2):
        sampler, loss = cx.samplers.log_uniform(3, ids_ranked=True), cx.losses.with_smoothing(cx.losses.css, 0.1)
        head = cx.Head(9, 2, sampler=sampler, loss=loss, rngs=nnx.Rngs(seed))
        fit = functools.partial(cx.training.fit, num_steps=2, loss_fn=loss_fn, progress=False)
        fit(head, cx.Optimizer(head, adam, seed=seed), batches)
        after.append(len(traced))
    assert after[0] == after[1]
