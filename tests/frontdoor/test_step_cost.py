"""What the compiled step of an ordinary model costs: the same for any number of classes, in the memory it was given."""

import re
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import candax as cx

DIM, SAMPLED, PREDICTIONS = 16, 8192, (16, 32)
SIZES = (10**5, 10**6)


class LM(nnx.Module):
    """The example: one table is input and output."""

    def __init__(self, num_classes: int) -> None:
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(num_classes, DIM, rngs=rngs)
        self.body = nnx.Sequential(nnx.Linear(DIM, DIM, rngs=rngs), nnx.gelu, nnx.Dropout(0.1, rngs=rngs))
        self.head = cx.Head(
            num_classes,
            table=self.words,
            sampler=cx.samplers.log_uniform(SAMPLED, ids_ranked=True),
            loss=cx.losses.sampled_softmax,
            rngs=rngs,
        )

    def __call__(self, tokens: Any) -> Any:
        return self.body(self.words(tokens))


TRACED: list[int] = []


@partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model, optimizer, tokens, labels, where):
    """With a metric that reads the table by a lookup: how long the input vectors are."""
    TRACED.append(model.words.num_embeddings)

    def loss_fn(model):
        length = jnp.mean(jnp.linalg.norm(model.words(tokens), axis=-1))
        return model.head.loss(model(tokens), labels, where=where), length

    (loss, length), grads = cx.value_and_grad(loss_fn, has_aux=True)(model)
    optimizer.update(model, grads)
    return loss, length


class Compiled(NamedTuple):
    """Of the step for one number of classes."""

    scratch: int
    aliased: int
    text: str


TABLES = {"lazy": optax.adam(1e-2), "exact": cx.rows.exact_adamw(1e-2, weight_decay=0.01)}


def start(num_classes, tables="lazy"):
    model = LM(num_classes)
    return model, cx.Optimizer(model, optax.adamw(1e-3), tables=TABLES[tables], clip_norm=1.0)


def inputs(number=0):
    tokens = jnp.asarray(np.random.default_rng(number).integers(0, 1000, PREDICTIONS), jnp.int32)
    return tokens, jnp.roll(tokens, -1, axis=1), tokens > 100


@cache
def compiled(num_classes, tables):
    executable = train_step.lower(*start(num_classes, tables), *inputs()).compile().compiled
    memory = executable.memory_analysis()
    return Compiled(memory.temp_size_in_bytes, memory.alias_size_in_bytes, executable.as_text())


@pytest.mark.parametrize("tables", TABLES)
def test_scratch_is_the_same_for_any_number_of_classes(tables):
    small, large = [compiled(size, tables).scratch for size in SIZES]
    assert large == pytest.approx(small, rel=0.01)


@pytest.mark.parametrize("tables", TABLES)
@pytest.mark.parametrize("num_classes", SIZES)
def test_no_table_is_copied(num_classes, tables):
    text = compiled(num_classes, tables).text
    whole = rf"\[{num_classes}(,{DIM})?\]"
    assert re.search(whole, text)
    made = re.findall(rf"= \w+{whole}\S* ([\w-]+)\(", text)
    assert not [operation for _, operation in made if operation.startswith("copy")]
    # The table with both moments, and of the biases, lie where they lay.
    assert compiled(num_classes, tables).aliased >= 3 * 4 * num_classes * (DIM + 1)


def test_a_step_keeps_the_buffers_and_is_compiled_once():
    TRACED.clear()
    model, optimizer = start(10**4)
    losses = []

    def large():
        leaves = jax.tree.leaves(nnx.to_pure_dict(nnx.state((model, optimizer))))
        return sorted(leaf.unsafe_buffer_pointer() for leaf in leaves if leaf.ndim and leaf.shape[0] == 10**4)

    before = large()
    assert len(before) == 6
    for number in range(3):
        loss, length = train_step(model, optimizer, *inputs(number))
        losses.append(float(loss))
        assert large() == before
    assert TRACED == [10**4]
    assert np.all(np.isfinite([*losses, length]))
    assert int(optimizer.skipped[...]) == 0
