"""What one training step of a large output layer costs, in one run on the same machine.

    python benchmarks/step_cost.py                (about 4 minutes on 2 cores; needs 12 GB of memory)
    python benchmarks/step_cost.py --json costs.json

All steps have the same shapes (dim 128, batch 256, 4096 shared log-uniform samples, one label, Adam) and start from the
embeddings: there is no encoder. Times are medians. What it should show:

* row-sparse: the step of this library costs the same at 10^5, 10^6 and 5 * 10^6 classes, and takes the same memory;
* dense-gradient: the same loss with the gradients of the gathers as dense arrays and a dense Adam, which is what
  `jax.grad` and optax do by themselves, costs at least 12 times as much at 670,000 classes;
* full softmax, in the faster of its two forms, at least 80 times as much;
* TensorFlow's `sampled_softmax_loss` with Adam (if it is installed: pip install -e '.[bench]'), at least 15 times.
"""

import dataclasses
import functools
import gc
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table

import candax as cx
from candax.blocks import DEFAULT_BLOCK_SIZE

DIM, BATCH, NUM_SAMPLED, LEARNING_RATE = 128, 256, 4096, 1e-3


class Batch(NamedTuple):
    """Embeddings and one label an example."""

    embeddings: np.ndarray
    labels: np.ndarray


class Identity(nnx.Module):
    """The batch holds embeddings already."""

    def lookups(self, batch: Batch) -> dict[str, Any]:
        """No tables."""
        return {}

    def encode(self, batch: Batch, rows: dict[str, Any]) -> jax.Array:
        """The embeddings."""
        return jnp.asarray(batch.embeddings)


@dataclasses.dataclass(frozen=True)
class Cost:
    """One line of the table; temporary bytes are those of the compiled step, None where nobody says."""

    step: str
    num_classes: int
    milliseconds: float
    temporary_bytes: int | None


def batches(num_classes: int, number: int = 8) -> list[Batch]:
    """Embeddings of unit variance and labels of falling frequency."""
    rng = np.random.default_rng(0)
    labels = np.floor(np.exp(rng.random((number, BATCH, 1)) * np.log(num_classes))).astype(np.int32) - 1
    return [Batch(rng.normal(size=(BATCH, DIM)).astype(np.float32), labels[i]) for i in range(number)]


def median_ms(step: Callable[[Batch], Any], data: list[Batch], repeats: int) -> float:
    """Median time of a step, after three that warm up."""
    times = []
    for i in range(repeats + 3):
        start = time.perf_counter()
        jax.block_until_ready(step(data[i % len(data)]))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[3:])


def measure_program(
    name: str, num_classes: int, sampler: Any, loss: Callable[..., Any], repeats: int, at_once: int = 1
) -> Cost:
    """A step of the library; the mean of ``at_once`` steps where they differ."""
    model = cx.models.Classifier(Identity(), cx.models.Head(num_classes, DIM, rngs=nnx.Rngs(0)))
    program = cx.training.build(model, sampler=sampler, loss=loss, optimizer=optax.adam(LEARNING_RATE))
    state = program.init(0)
    del model
    data = batches(num_classes)
    compiled = program.step.lower(state, data[0]).compile()

    def step(batch: Batch) -> Any:
        nonlocal state
        for _ in range(at_once):
            state, value = compiled(state, batch)
        return state, value

    milliseconds = median_ms(step, data, repeats) / at_once
    return Cost(name, num_classes, milliseconds, compiled.memory_analysis().temp_size_in_bytes)


def measure_dense_gradient(num_classes: int, repeats: int) -> Cost:
    """The same sampled softmax with `jax.grad` through the gathers and optax on whole tables."""
    sampler = cx.samplers.log_uniform(NUM_SAMPLED, ids_ranked=True)
    optimizer = optax.adam(LEARNING_RATE)
    head = cx.models.Head(num_classes, DIM, rngs=nnx.Rngs(0))
    tables = (head.vectors[...], head.biases[...])
    sampler_state = sampler.init(jax.random.key(0), head.classes())

    def mean_loss(tables: Any, batch: Batch, key: jax.Array) -> jax.Array:
        vectors, biases = tables
        labels = jnp.asarray(batch.labels)
        classes = cx.Classes(vectors, biases, None, jnp.int32(num_classes))
        query = cx.Query(jnp.asarray(batch.embeddings), labels, classes)
        candidates = sampler.sample(sampler_state, key, query)
        count = sampler.log_expected_count(sampler_state, candidates, labels.reshape(1, -1), query)
        logits = cx.models.score(
            query.embeddings,
            labels,
            candidates,
            count.reshape(labels.shape),
            vectors[labels],
            biases[labels],
            vectors[candidates.ids],
            biases[candidates.ids],
            num_classes=num_classes,
        )
        return jnp.mean(cx.losses.sampled_softmax(logits))

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: Any, batch: Batch) -> Any:
        tables, optimizer_state, number = state
        key = jax.random.fold_in(jax.random.key(0), number)
        value, grads = jax.value_and_grad(mean_loss)(tables, batch, key)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, tables)
        return (optax.apply_updates(tables, updates), optimizer_state, number + 1), value

    state = (tables, optimizer.init(tables), jnp.int32(0))
    del head, tables
    data = batches(num_classes)
    compiled = step.lower(state, data[0]).compile()

    def advance(batch: Batch) -> Any:
        nonlocal state
        state, value = compiled(state, batch)
        return state, value

    milliseconds = median_ms(advance, data, repeats)
    return Cost("dense gradient", num_classes, milliseconds, compiled.memory_analysis().temp_size_in_bytes)


def measure_tensorflow(num_classes: int, repeats: int) -> Cost:
    """`tf.nn.sampled_softmax_loss` with Keras' Adam, whose step on the gathers' sparse gradients is dense."""
    import tensorflow as tf

    data = batches(num_classes)
    rng = np.random.default_rng(0)
    vectors = tf.Variable((rng.normal(size=(num_classes, DIM)) / np.sqrt(DIM)).astype(np.float32))
    biases = tf.Variable(tf.zeros(num_classes))
    optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build([vectors, biases])

    @tf.function
    def step(embeddings: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.sampled_softmax_loss(
                vectors, biases, labels, embeddings, NUM_SAMPLED, num_classes, remove_accidental_hits=True
            )
            loss = tf.reduce_mean(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, [vectors, biases]), [vectors, biases], strict=True))
        return loss

    tensors = [(tf.constant(b.embeddings), tf.constant(b.labels.astype(np.int64))) for b in data]
    times = []
    for i in range(repeats + 3):
        start = time.perf_counter()
        step(*tensors[i % len(tensors)]).numpy()
        times.append(1e3 * (time.perf_counter() - start))
    return Cost("TensorFlow", num_classes, statistics.median(times[3:]), None)


def main(
    output: Annotated[Path | None, tyro.conf.arg(name="json")] = None, repeats: int = 40, classes: int = 670_000
) -> None:
    """Measures all steps and prints a table.

    Args:
        output: file for the figures.
        repeats: steps behind each median (a fifth of it for the slow ones).
        classes: number of classes at which row-sparse, dense-gradient and full steps are compared.
    """
    costs = []

    def add(measure: Callable[..., Cost], *args: Any) -> None:
        costs.append(measure(*args))
        gc.collect()

    def sampled(num_classes: int) -> None:
        sampler = cx.samplers.log_uniform(NUM_SAMPLED, ids_ranked=True)
        add(measure_program, "row-sparse", num_classes, sampler, cx.losses.sampled_softmax, repeats)

    for num_classes in (10**5, 10**6, 5 * 10**6):
        sampled(num_classes)
    few = max(3, repeats // 5)
    sampled(classes)
    add(measure_dense_gradient, classes, few)
    blocks = functools.partial(cx.losses.full_softmax, block_size=DEFAULT_BLOCK_SIZE)
    add(measure_program, "full, in blocks", classes, None, blocks, few)
    add(measure_program, "full, plain", classes, None, cx.losses.full_softmax, few)
    if importlib.util.find_spec("tensorflow") is not None:
        add(measure_tensorflow, classes, few)
    report(costs, output)


def report(costs: list[Cost], path: Path | None) -> None:
    """Prints the table and the ratios, and writes them."""
    small, _, large, ours, *others = costs
    full = min((c for c in others if c.step.startswith("full")), key=lambda c: c.milliseconds)
    ratios = {
        f"{large.num_classes:,} / {small.num_classes:,} classes": large.milliseconds / small.milliseconds,
        "dense gradient / row-sparse": others[0].milliseconds / ours.milliseconds,
        f"full ({full.step}) / row-sparse": full.milliseconds / ours.milliseconds,
    }
    if costs[-1].step == "TensorFlow":
        ratios["TensorFlow / row-sparse"] = costs[-1].milliseconds / ours.milliseconds
    device = jax.devices()[0]
    where = f"{device.device_kind} ({device.platform}), JAX {jax.__version__}, {platform.machine()}"
    table = Table(title=f"dim {DIM}, batch {BATCH}, {NUM_SAMPLED} samples, Adam: {where}")
    for column in ("step", "classes", "ms", "temporary bytes"):
        table.add_column(column, justify="left" if column == "step" else "right")
    for cost in costs:
        temporary = "-" if cost.temporary_bytes is None else f"{cost.temporary_bytes:,}"
        table.add_row(cost.step, f"{cost.num_classes:,}", f"{cost.milliseconds:.2f}", temporary)
    console = Console()
    console.print(table)
    for name, ratio in ratios.items():
        console.print(f"{name}: {ratio:.2f}")
    if path is not None:
        record = {"where": where, "costs": [dataclasses.asdict(c) for c in costs], "ratios": ratios}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    tyro.cli(main)
