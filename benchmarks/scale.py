r"""Training with ArcFace over very many classes on this machine: time per step and memory, on one device or on several.

    python benchmarks/scale.py                                              (10^5, 10^6, 10^7 classes on one device)
    XLA_FLAGS=--xla_force_host_platform_device_count=8 python benchmarks/scale.py --num-classes 1000000 10000000
    python benchmarks/scale.py --largest                                    (as many classes as the memory allows)
    XLA_PYTHON_CLIENT_MEM_FRACTION=.95 python benchmarks/scale.py --num-classes 100000000 --dim 512 \
        --dtype bfloat16 --optimizer sgd                                    (a GPU with 140 GB)

Normalised class vectors, ArcFace before the css loss; candidates of `partial_fc` (the batch's labels and uniform fill),
or of ANN Softmax (`--sampler ann_softmax`, whose index is one of the parts). Batches hold embeddings, so that there is
no encoder. The candidates are divided among the devices.

`--largest` compiles start and step at two sizes without running them, takes from the compiler what they need, finds the
size whose need is the given share of the memory, and trains it. The memory is on a CPU what is free, else what JAX
may use of the device: three quarters, unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise.

What it should show: the step takes the same temporary memory at any number of classes and about the same time; what
a device must hold is the table, its optimizer state and the index, in equal parts on each, and starting takes hardly
more.
"""

import dataclasses
import functools
import gc
import os
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
from measuring import machine, show, write
from steps import Batch, median_ms

import candax as cx
from candax.allocation import with_reused_memory
from candax.diagnostics.timing import compiled_by_fit
from candax.recipes import common
from candax.training.trainer import Graph, compiled_step

OPTIMIZERS = {"adam": optax.adam, "adagrad": optax.adagrad, "sgd": optax.sgd}


@dataclasses.dataclass(frozen=True)
class Cost:
    """One line of the table; all bytes are those of one device."""

    num_classes: int
    devices: int
    start_seconds: float
    milliseconds: float
    weights_bytes: int
    optimizer_bytes: int
    index_bytes: int
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


def make_sampler(num_classes: int, settings: "Settings", devices: int) -> cx.Sampler:
    """For so many devices: each has its share of the candidates, from its own classes."""
    num_sampled = settings.num_sampled
    if settings.sampler == "partial_fc":
        return cx.samplers.partial_fc(num_sampled)
    own = num_classes // devices
    k = cx.samplers.classes_per_example(num_sampled, settings.batch_size, 1)
    kept = min(own, max(k, 1000))
    found = cx.samplers.ivf_bq(k, num_centers=max(1, min(1024, own // 64)), hm_num=min(own, 10 * kept), num_kept=kept)
    return cx.samplers.grouped(cx.samplers.every(found, 10**6), num_sampled=num_sampled, num_groups=1)


def make(num_classes: int, settings: "Settings") -> tuple[nnx.Module, cx.Optimizer]:
    """A head of cosines under ArcFace, and its optimizer; inside jit each device makes its own part."""
    devices = jax.device_count()
    head = cx.Head(
        num_classes,
        settings.dim,
        sampler=make_sampler(num_classes, settings, devices),
        loss=cx.losses.with_margin(functools.partial(cx.losses.arcface, margin=0.5, scale=64.0), cx.losses.css),
        normalized=True,
        dtype=jnp.dtype(settings.dtype),
        mesh=None if devices == 1 else cx.training.class_mesh(),
        rngs=nnx.Rngs(0),
    )
    return head, cx.Optimizer(head, OPTIMIZERS[settings.optimizer](1e-2))


def loss_fn(head: Any, batch: Batch) -> jax.Array:
    """Of a batch that holds embeddings already."""
    return head.loss(batch.embeddings, batch.labels)


def measure(num_classes: int, settings: "Settings") -> Cost:
    """Starts a model and trains some steps."""
    start = time.perf_counter()
    nodes = nnx.jit(lambda: make(num_classes, settings))()
    if jax.device_count() > 1:
        cx.rows.replicate(cx.training.class_mesh(), *nodes)
    jax.block_until_ready(nnx.state(nodes))
    started = time.perf_counter() - start
    head, optimizer = nodes
    parts = nnx.state(head, cx.rows.Table), nnx.state(optimizer), head.state.get_value()
    held = [held_bytes(part) for part in parts]
    data = batches(num_classes, settings.dim, settings.batch_size)
    step, program = compiled_by_fit(nodes, loss_fn, data[0])
    del nodes, head, optimizer, parts
    milliseconds = median_ms(step, data, settings.repeats)
    scratch = program.memory_analysis().temp_size_in_bytes
    return Cost(num_classes, jax.device_count(), started, milliseconds, *held, scratch)


def held_bytes(tree: Any) -> int:
    """On the first device."""
    first = jax.devices()[0]
    shards = [shard for leaf in jax.tree.leaves(tree) for shard in leaf.addressable_shards]
    return sum(shard.data.nbytes for shard in shards if shard.device == first)


def needed_bytes(num_classes: int, settings: "Settings") -> int:
    """What start or step need of a device at most, whichever needs more, as the compiler says without running them."""
    start = jax.jit(lambda: nnx.state(make(num_classes, settings))).lower().compile()
    graph, shapes = nnx.split(nnx.eval_shape(lambda: make(num_classes, settings)))
    # Placed as the start places it: of other places nothing can be updated in place.
    arrays = jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        start.output_shardings,
    )
    batch = batches(num_classes, settings.dim, settings.batch_size, number=1)[0]
    needed = []
    for compiled in (start, compiled_step(loss_fn, 1).lower(Graph(graph), arrays, batch).compile()):
        memory = compiled.memory_analysis()
        own = memory.output_size_in_bytes - memory.alias_size_in_bytes
        needed.append(memory.argument_size_in_bytes + memory.temp_size_in_bytes + own)
    return max(needed)


def largest(settings: "Settings") -> int:
    """The number of classes that needs the given share of the memory, from two small ones on a line."""
    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        memory = stats["bytes_limit"]
    else:
        # Virtual devices share what the machine has.
        memory = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // jax.device_count()
    few, more = 2_000_000, 4_000_000
    at_few, at_more = (needed_bytes(number, settings) for number in (few, more))
    per_class = (at_more - at_few) / (more - few)
    found = few + (settings.share * memory - at_few) / per_class
    print(f"{memory / 1e9:.1f} GB per device, {per_class:.1f} bytes per class: {settings.share:.0%} hold {found:,.0f}")
    # A round number.
    return max(1, int(found // 100_000)) * 100_000


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
    sampler: Literal["partial_fc", "ann_softmax"] = "partial_fc"
    """Uniform candidates, or those that an inverted index with binary codes finds."""
    largest: bool = False
    """Measures the largest number of classes that the memory allows, instead of --num-classes."""
    share: float = 0.8
    """Of the memory, for --largest."""
    repeats: int = 30
    """Timed steps."""
    json_file: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Where to write the figures; nowhere by default."""


def main(settings: Settings) -> None:
    """Measures every size and prints the table."""
    costs = []
    if not 0 < settings.share <= 1:
        raise SystemExit(f"expected --share above 0 and at most 1, got {settings.share}.")
    for num_classes in (largest(settings),) if settings.largest else settings.num_classes:
        costs.append(measure(num_classes, settings))
        gc.collect()
    what = f"dim {settings.dim}, batch {settings.batch_size}, {settings.num_sampled} candidates, {settings.sampler}"
    rows = [dataclasses.asdict(cost) for cost in costs]
    columns = common.columns(num_classes=",", devices="", start_seconds=".1f", milliseconds=".1f")
    columns += common.columns(weights=",.2f", optimizer=",.2f", index=",.2f", temporary=",.2f")
    in_mb = [row | {column.name: row[f"{column.name}_bytes"] / 1e6 for column in columns[-4:]} for row in rows]
    show(f"{what}, {settings.optimizer}, {settings.dtype}: {machine()}", columns, in_mb, "MB of one device")
    # Kilobytes on Linux.
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"most memory of this process at any time: {peak / 1e9:.1f} GB")
    write(settings.json_file, {"where": machine(), "what": what, "costs": rows})


if __name__ == "__main__":
    with_reused_memory()
    main(tyro.cli(Settings))
