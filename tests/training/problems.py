"""Small classification problems that training tests share."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax.training.program import Program

NUM_CLASSES = 60
NUM_FEATURES = 40
DIM = 8


class Source(NamedTuple):
    """Random batches as a pure function of (seed, epoch, index)."""

    batch_size: int = 16
    num_labels: int = 3
    seed: int = 0
    batches_per_epoch: int = 10

    @property
    def identity(self) -> dict[str, Any]:
        return {"seed": self.seed, "batch_size": self.batch_size}

    def __getitem__(self, position: tuple[int, int]) -> cx.data.Batch:
        rng = np.random.default_rng((self.seed, *position))
        ids = np.stack([rng.permutation(NUM_FEATURES)[:5] for _ in range(self.batch_size)]).astype(np.int32)
        ids[:, 4] = np.where(rng.random(self.batch_size) < 0.5, -1, ids[:, 4])
        values = np.where(ids >= 0, 1.0, 0.0).astype(np.float32)
        labels = np.stack([rng.permutation(NUM_CLASSES)[: self.num_labels] for _ in range(self.batch_size)])
        # The first label can be learned from the features; the others are noise, and the last one is often missing.
        labels[:, 0] = ids[:, 0]
        labels[:, 1:] = np.where(labels[:, 1:] == labels[:, :1], -1, labels[:, 1:])
        labels[:, 2:] = np.where(rng.random((self.batch_size, 1)) < 0.5, -1, labels[:, 2:])
        return cx.data.Batch(ids, values, labels.astype(np.int32))


def counts() -> jnp.ndarray:
    """In proportion to how often a class is a label: the first 40 as first label and as noise, the others as noise."""
    return jnp.where(jnp.arange(NUM_CLASSES) < NUM_FEATURES, 20.0, 10.0)


def model(num_rows: int | None = None) -> cx.models.Classifier:
    encoder = cx.models.SparseMLP(NUM_FEATURES, DIM, rngs=nnx.Rngs(0))
    head = cx.models.Head(NUM_CLASSES, DIM, counts=counts(), num_rows=num_rows, rngs=nnx.Rngs(1))
    return cx.models.Classifier(encoder, head)


def program(sampler: Any = None, loss: Any = cx.losses.full_softmax, optimizer: Any = None, **kwargs: Any) -> Program:
    optimizer = optax.adam(1e-2) if optimizer is None else optimizer
    return cx.training.build(model(), sampler=sampler, loss=loss, optimizer=optimizer, **kwargs)
