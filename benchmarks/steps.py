"""Steps of candax over a large output layer, for the benchmarks: how they are made, and how they are timed by turns."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax.diagnostics.timing import compiled_by_fit, in_place, timed
from candax.training.trainer import Trainer

DIM, BATCH, NUM_SAMPLED, LEARNING_RATE = 128, 256, 4096, 1e-3
COMPILED = "compiled step"
EXACT = "exact Adam"


class Batch(NamedTuple):
    """Embeddings and one label per example."""

    embeddings: np.ndarray
    labels: np.ndarray


@dataclasses.dataclass(frozen=True)
class Cost:
    """One line of the table.

    ``ratio`` is the median over the rounds of its time to that of the first step of the same rounds; temporary bytes
    are those of the compiled step, None where nobody says.
    """

    step: str
    num_classes: int
    milliseconds: float
    ratio: float
    temporary_bytes: int | None


class Step(NamedTuple):
    """A step to be measured: what a batch goes through, and the temporary bytes of its program."""

    name: str
    run: Callable[[Batch], Any]
    scratch: int | None


def batches(num_classes: int, number: int = 8) -> list[Batch]:
    """Embeddings of unit variance and labels of falling frequency."""
    rng = np.random.default_rng(0)
    labels = np.floor(np.exp(rng.random((number, BATCH, 1)) * np.log(num_classes))).astype(np.int32) - 1
    return [Batch(rng.normal(size=(BATCH, DIM)).astype(np.float32), labels[i]) for i in range(number)]


def sampler() -> cx.Sampler:
    """The one that all steps draw from."""
    return cx.samplers.log_uniform(NUM_SAMPLED, ids_ranked=True)


def median_ms(step: Callable[[Batch], Any], data: list[Batch], repeats: int, together: int = 1) -> float:
    """Median time of a call, after three that warm up; of ``together`` calls in a row the mean counts as one."""

    def call(i: int) -> Any:
        return [step(data[(i * together + j) % len(data)]) for j in range(together)][-1]

    return float(np.median(timed({"": call}, repeats, warm=3)[""][:, 0])) / together


def by_turns(steps: list[Step], num_classes: int, repeats: int) -> list[Cost]:
    """Median times of steps, each once in every round, after three rounds that warm up."""
    data = batches(num_classes)
    calls = {step: functools.partial(lambda step, i: step.run(data[i % len(data)]), step) for step in steps}
    times = {step: found[:, 0] for step, found in timed(calls, repeats, warm=3).items()}
    first = times[steps[0]]
    return [
        Cost(step.name, num_classes, float(np.median(ms)), float(np.median(ms / first)), step.scratch)
        for step, ms in times.items()
    ]


def _loss(head: cx.Head, batch: Batch) -> jax.Array:
    return head.loss(batch.embeddings, batch.labels)


def compiled_library_step(
    name: str, num_classes: int, loss: Any, sampler: cx.Sampler | None, tables: Any = None
) -> Step:
    """The step that `fit` compiles, called without any dispatch."""
    counts = num_classes / np.arange(1, num_classes + 1)
    head = cx.Head(num_classes, DIM, sampler=sampler, loss=loss, counts=counts, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(head, optax.adam(LEARNING_RATE), tables=tables)
    step, program = compiled_by_fit((head, optimizer), _loss, batches(num_classes)[0])
    return Step(name, step, program.memory_analysis().temp_size_in_bytes)


def library_step(num_classes: int) -> Step:
    """The step that all others are compared with."""
    return compiled_library_step(COMPILED, num_classes, cx.losses.sampled_softmax, sampler())


def exact_step(num_classes: int) -> Step:
    """The same with the optimizer that comes to what dense Adam comes to."""
    tables = cx.rows.exact_adam(LEARNING_RATE)
    return compiled_library_step(EXACT, num_classes, cx.losses.sampled_softmax, sampler(), tables)


def pure_loss(num_classes: int) -> tuple[dict[str, jax.Array], Callable[..., jax.Array]]:
    """Tables, and sampled softmax as a pure function of them, of a batch and of the number of the step."""
    draws_from = sampler()
    tables = {
        "vectors": cx.Head(num_classes, DIM, rngs=nnx.Rngs(0)).vectors[...],
        "biases": jnp.zeros(num_classes),
    }
    state = draws_from.init(jax.random.key(0), cx.Classes(tables["vectors"]))

    def mean_loss(tables: Any, batch: Batch, number: jax.Array) -> jax.Array:
        return cx.sampled_loss(
            batch.embeddings,
            batch.labels,
            cx.Classes(tables["vectors"], tables["biases"]),
            sampler=draws_from,
            state=state,
            key=jax.random.fold_in(jax.random.key(0), number),
            loss=cx.losses.sampled_softmax,
        )

    return tables, mean_loss


def pure_step(num_classes: int) -> Step:
    """The same of layer 1: pure functions, jitted by `jax.jit`."""
    by_rows, (tables, mean_loss) = cx.rows.rowwise(optax.adam(LEARNING_RATE)), pure_loss(num_classes)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, batch: Batch) -> Any:
        tables, states, number = state
        value, grads = cx.rows.value_and_grad(lambda tables, params: mean_loss(tables, batch, number))(tables, ())
        done = {name: by_rows.update(grads.rows[name], states[name], tables[name]) for name in sorted(tables)}
        new = {name: part.table for name, part in done.items()}, {name: part.state for name, part in done.items()}
        return (*new, number + 1), value

    state = (tables, {name: by_rows.init(table) for name, table in tables.items()}, jnp.int32(0))
    compiled = update.lower(state, batches(num_classes)[0]).compile()
    return Step("layer 1, pure", in_place(update, state), compiled.memory_analysis().temp_size_in_bytes)


def module_step(num_classes: int, mode: str = "modules") -> Step:
    """The same of layer 2: `cx.Head` and `cx.Optimizer` in `nnx.jit`, whose dispatch counts.

    "modules" is Flax' graph mode, "cached" that with `nnx.cached_partial`, "tree mode" its tree mode.
    """
    head = cx.Head(num_classes, DIM, sampler=sampler(), loss=cx.losses.sampled_softmax, rngs=nnx.Rngs(0))
    optimizer = cx.Optimizer(head, optax.adam(LEARNING_RATE))

    @functools.partial(nnx.jit, donate_argnums=(0, 1), graph=mode != "tree mode")
    def update(head: cx.Head, optimizer: cx.Optimizer, batch: Batch) -> jax.Array:
        value, grads = cx.value_and_grad(lambda head: head.loss(batch.embeddings, batch.labels))(head)
        optimizer.update(head, grads)
        return value

    compiled = update.lower(head, optimizer, batches(num_classes)[0]).compile().compiled
    bound = nnx.cached_partial if mode == "cached" else functools.partial
    step = bound(update, head, optimizer)
    return Step(f"layer 2, {mode}", step, compiled.memory_analysis().temp_size_in_bytes)


def loop_step(num_classes: int) -> Step:
    """The same as `fit` runs it: arrays split from the modules once, in `jax.jit`, whose dispatch counts."""
    head = cx.Head(num_classes, DIM, sampler=sampler(), loss=cx.losses.sampled_softmax, rngs=nnx.Rngs(0))
    trainer = Trainer(head, cx.Optimizer(head, optax.adam(LEARNING_RATE)), _loss, accumulate=1)
    return Step("fit", trainer.step, None)


def full_step(num_classes: int, block_size: int | None) -> Step:
    """The same step over all classes."""
    loss = functools.partial(cx.losses.full_softmax, block_size=block_size)
    name = "full, plain" if block_size is None else "full, in blocks"
    return compiled_library_step(name, num_classes, loss, None)
