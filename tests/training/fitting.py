"""A small model, batches of it, and ``fit`` with both: what the tests of the loop share."""

import dataclasses
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx

NUM, DIM, SIZE = 50, 6, 8
# The same objects for all models, so that a step is compiled once.
SAMPLER, ADAM = cx.samplers.uniform(12), optax.adam(1e-2)


class Model(nnx.Module):
    """A table for words in and words out, with dropout and batch statistics."""

    def __init__(self, num=NUM):
        rngs = nnx.Rngs(0)
        self.words = cx.Embed(num, DIM, rngs=rngs)
        self.norm = nnx.BatchNorm(DIM, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.head = cx.Head(num, table=self.words, sampler=SAMPLER, rngs=rngs)

    def __call__(self, batch):
        return self.dropout(self.norm(self.words(words_of(batch))))


class Named(NamedTuple):
    words: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass
class Data:
    words: np.ndarray
    labels: np.ndarray


class Tensor:
    """What a torch tensor is to NumPy."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


def words_of(batch):
    if isinstance(batch, dict):
        return batch["words"]
    return getattr(batch, "words", batch)


def pairs(number=10, seed=0):
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(0, NUM, (2, SIZE))) for _ in range(number)]


def make(tx=None, num=NUM):
    model = Model(num)
    return model, cx.Optimizer(model, ADAM if tx is None else tx, clip_norm=1.0)


def fit(batches, model=None, optimizer=None, **options):
    if model is None:
        model, optimizer = make()
    options = {"num_steps": 12, "log_every": 4, "progress": False, **options}
    return cx.training.fit(model, optimizer, batches, **options)


def arrays(fitted):
    leaves = jax.tree.leaves(nnx.state((fitted.model, fitted.optimizer)))
    return [np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x) for x in leaves]


def same(one, other):
    chex.assert_trees_all_equal(arrays(one), arrays(other))


def raw(nodes):
    keys = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    return jax.tree.map(keys, nnx.state(nodes))


class Loader:
    """An iterator with a position, as grain's; ``get_state`` gives bytes."""

    def __init__(self, batches):
        self.batches = batches

    def __iter__(self):
        return Iterator(self.batches)


class Iterator:
    def __init__(self, batches):
        self.batches, self.at = batches, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.batches):
            raise StopIteration
        self.at += 1
        return self.batches[self.at - 1]

    def get_state(self):
        return str(self.at).encode()

    def set_state(self, state):
        self.at = int(state)


class Stateful(Loader):
    """A loader with a position, as torchdata's."""

    start, at = 0, 0

    def __iter__(self):
        first, self.start = self.start, 0
        for at in range(first, len(self.batches)):
            self.at = at + 1
            yield self.batches[at]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.start = state["at"]


def count(model, batches):
    return {"number": sum(1 for _ in batches), "training": float(not model.dropout.deterministic)}
