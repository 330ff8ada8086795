"""Small classification problems that training tests share."""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax.training.trainer import Graph, compiled_step, loss_of_labels

NUM_CLASSES = 60
NUM_FEATURES = 40
DIM = 8
HASHED = cx.samplers.lsh(
    hash=cx.samplers.simhash(),
    num_tables=3,
    num_hashes=3,
    budget=12,
    fill="uniform",
    num_groups=1,
    schedule=cx.samplers.exponential_schedule(6, growth=1.5),
)


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


def model(sampler: Any = None, loss: Any = None, **head: Any) -> cx.models.Classifier:
    encoder = cx.models.SparseMLP(NUM_FEATURES, DIM, rngs=nnx.Rngs(0))
    made = cx.Head(NUM_CLASSES, DIM, sampler=sampler, loss=loss, counts=counts(), rngs=nnx.Rngs(1), **head)
    return cx.models.Classifier(encoder, made)


def tables(model: nnx.Module) -> dict[str, Any]:
    """The arrays of a model's tables, by path."""
    found = nnx.to_flat_state(nnx.state(model, cx.rows.Table))
    return {".".join(map(str, path)): table.get_value() for path, table in found}


@partial(nnx.jit, donate_argnums=(0, 1))
def train_step(model: nnx.Module, optimizer: cx.Optimizer, batch: Any) -> Any:
    """What a user writes."""
    loss, grads = cx.value_and_grad(lambda model: loss_of_labels(model, batch)[0])(model)
    optimizer.update(model, grads)
    return loss


# One for all: steps with another are compiled anew.
ADAM = optax.adam(1e-2)


class Training:
    """A model and its optimizer, a step at a time."""

    def __init__(self, model: Any, optimizer: Any = None, **options: Any) -> None:
        self.model = model
        self.optimizer = cx.Optimizer(model, ADAM if optimizer is None else optimizer, **options)

    def step(self, batch: Any) -> Any:
        return train_step(self.model, self.optimizer, batch)

    @property
    def tables(self) -> dict[str, Any]:
        return tables(self.model)

    @property
    def sampler(self) -> Any:
        """The sampler's state."""
        return self.model.head.state.get_value()


def compiled(make: Any, batch: Any) -> Any:
    """The compiled step of what ``make()`` returns, a model and its optimizer, from shapes alone."""
    graph, arrays = nnx.split(nnx.eval_shape(make))
    return compiled_step(loss_of_labels, 1).lower(Graph(graph), arrays, batch).compile()
