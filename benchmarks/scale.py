"""Training with ArcFace over very many classes on this machine: time a step and memory, on one device or on several.

    python benchmarks/scale.py                                              (10^5, 10^6, 10^7 classes on one device)
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/scale.py --num-classes 1000000 10000000
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/scale.py --num-classes 100000000 --dim 16 \
        --optimizer sgd                                                     (needs 16 GB of memory)

Normalised class vectors, ArcFace before the css loss, candidates of `partial_fc` (the batch's labels and uniform fill);
batches hold embeddings, so that there is no encoder. With one device `build`, with several `build_class_parallel`, the
candidates divided among the devices. Every state is one checkpointable program, as in training.

What it should show: the step takes the same temporary memory at any number of classes and about the same time; what
a device must hold is the table and its optimizer state, in equal parts on each.
"""

import dataclasses
import functools
import gc
import json
import platform
import resource
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console
from rich.table import Table
from step_cost import Batch, Identity, median_ms

import candax as cx

OPTIMIZERS = {"adam": optax.adam, "adagrad": optax.adagrad, "sgd": optax.sgd}


@dataclasses.dataclass(frozen=True)
class Cost:
    """One line of the table; ``state_bytes`` and ``temporary_bytes`` are those of one device."""

    num_classes: int
    devices: int
    start_seconds: float
    milliseconds: float
    state_bytes: int
    temporary_bytes: int


def batches(num_classes: int, dim: int, batch_size: int, number: int = 8) -> list[Batch]:
    """Embeddings of unit variance and a uniformly drawn label each."""
    rng = np.random.default_rng(0)
    return [
        Batch(
            rng.standard_normal((batch_size, dim), np.float32),
            rng.integers(0, num_classes, (batch_size, 1)).astype(np.int32),
        )
        for _ in range(number)
    ]


def measure(num_classes: int, settings: "Settings") -> Cost:
    """Starts a state and trains some steps."""
    devices = jax.device_count()
    loss = cx.losses.with_margin(functools.partial(cx.losses.arcface, margin=0.5, scale=64.0), cx.losses.css)
    optimizer = OPTIMIZERS[settings.optimizer](1e-2)
    sampler = cx.samplers.partial_fc(settings.num_sampled // devices)

    def make_model() -> cx.models.Classifier:
        head = cx.models.Head(
            num_classes, settings.dim, normalized=True, dtype=jnp.dtype(settings.dtype), rngs=nnx.Rngs(0)
        )
        return cx.models.Classifier(Identity(), head)

    start = time.perf_counter()
    build: Any = cx.training.build if devices == 1 else cx.training.build_class_parallel
    model = make_model() if devices == 1 else make_model
    program = build(model, sampler=sampler, loss=loss, optimizer=optimizer)
    state = jax.block_until_ready(program.init(0))
    del model
    gc.collect()
    started = time.perf_counter() - start
    data = batches(num_classes, settings.dim, settings.batch_size)
    compiled = program.step.lower(state, data[0]).compile()

    def step(batch: Batch) -> Any:
        nonlocal state
        state, value = compiled(state, batch)
        return state, value

    milliseconds = median_ms(step, data, settings.repeats)
    first = jax.devices()[0]
    held = sum(
        shard.data.nbytes
        for leaf in jax.tree.leaves(state)
        for shard in leaf.addressable_shards
        if shard.device == first
    )
    return Cost(num_classes, devices, started, milliseconds, held, compiled.memory_analysis().temp_size_in_bytes)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Measures and prints."""

    num_classes: tuple[int, ...] = (100_000, 1_000_000, 10_000_000)
    """Sizes of the output layer."""
    dim: int = 64
    """Coordinates of a class vector."""
    batch_size: int = 256
    """Examples a step, over all devices."""
    num_sampled: int = 4096
    """Candidates a step, over all devices."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """Keeps two, one or no number beside every weight."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the class vectors."""
    repeats: int = 30
    """Timed steps."""
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Where to write the figures; nowhere by default."""


def main(settings: Settings) -> None:
    """Measures every size and prints the table."""
    costs = []
    for num_classes in settings.num_classes:
        costs.append(measure(num_classes, settings))
        gc.collect()
    device = jax.devices()[0]
    where = f"{device.device_kind} ({device.platform}), {platform.machine()}, JAX {jax.__version__}"
    what = f"dim {settings.dim}, batch {settings.batch_size}, {settings.num_sampled} candidates, {settings.optimizer}"
    table = Table(title=f"{what}, {settings.dtype}: {where}")
    for column in ("classes", "devices", "start s", "ms a step", "state bytes a device", "temporary bytes a device"):
        table.add_column(column, justify="right")
    for cost in costs:
        table.add_row(
            f"{cost.num_classes:,}",
            str(cost.devices),
            f"{cost.start_seconds:.1f}",
            f"{cost.milliseconds:.1f}",
            f"{cost.state_bytes:,}",
            f"{cost.temporary_bytes:,}",
        )
    Console().print(table)
    # Kilobytes on Linux.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"most memory of this process at any time: {peak / 1e9:.1f} GB")
    if settings.json_file is not None:
        record = {"where": where, "what": what, "costs": [dataclasses.asdict(cost) for cost in costs]}
        settings.json_file.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Settings))
