"""Runs of every kind, small, each in a process that may be killed at any moment and be started again.

This module is loaded before processes fork: it may import JAX, and must not use it.
"""

import contextlib
import functools
import json
import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from scipy.sparse import csr_array

import candax as cx
from candax.data import cache
from candax.files import replacing
from candax.training.checkpoints import Checkpoints
from candax.training.launch import COORDINATOR, INDEX, NUMBER
from tests.campaign import commands
from tests.training import problems

NUM_STEPS = 24
END = "end.npz"
LOG = "log.txt"
ERROR = "error.json"
# So long a step takes at least, so that a kill may come between any two.
STEP_SECONDS = 0.03
_QUICKLY_COMPILED = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


def fitted(make: Callable[[], Any], folder: Path, batches: Any, read: bool = True) -> dict[str, np.ndarray]:
    """The weights, optimizer and sampler of a run that goes on from what the folder holds."""
    model, optimizer = make()

    def slowly(step: int, metrics: Mapping[str, float]) -> None:
        time.sleep(STEP_SECONDS)

    cx.training.fit(
        model, optimizer, batches, num_steps=NUM_STEPS, folder=folder, checkpoint_every=4, keep=2, log_every=1,
        callback=slowly, progress=False,
    )  # fmt: skip
    return _arrays((model, optimizer)) if read else {}


def _arrays(of: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(nnx.state(of)))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves if hasattr(leaf, "dtype")}


class Skipping(problems.Source):
    """A planted fault: what goes on after a kill leaves out a batch."""

    def __getitem__(self, position: tuple[int, int]) -> Any:
        epoch, index = position
        return super().__getitem__((epoch, index + self.seed))

    @property
    def identity(self) -> dict[str, Any]:
        return {}


def skipping(folder: Path) -> dict[str, np.ndarray]:
    """Its batches are others where it finds a checkpoint."""
    resumed = any((folder / "checkpoints").glob("[0-9]*"))
    return head(cx.samplers.log_uniform(8), 1, folder, Skipping(seed=int(resumed)))


def head(sampler: Any, mesh_of: int, folder: Path, batches: Any = None, tables: Any = None) -> dict[str, np.ndarray]:
    """A classifier, on one device or with its classes over several."""

    def make() -> Any:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:mesh_of]), ("classes",)) if mesh_of > 1 else None
        model = problems.model(sampler, cx.losses.css, mesh=mesh)
        if mesh is not None:
            cx.rows.shard(model.encoder, mesh)
        return model, cx.Optimizer(model, optax.adam(0.01), tables=tables, seed=0)

    return fitted(make, folder, batches or problems.Source())


class Parts(problems.Source):
    """Each process has its part of each batch."""

    def __getitem__(self, position: tuple[int, int]) -> Any:
        each = self.batch_size // jax.process_count()
        mine = slice(jax.process_index() * each, (jax.process_index() + 1) * each)
        return type(batch := super().__getitem__(position))(*(part[mine] for part in batch))


def spread(folder: Path) -> dict[str, np.ndarray]:
    """A classifier over all devices there are, with as many shards as 1, 2, 3, 4 and 8 divide."""
    cx.training.connect()

    def make() -> Any:
        mesh = cx.training.class_mesh()
        model = problems.model(cx.samplers.uniform(48), cx.losses.css, mesh=mesh, num_shards=24)
        cx.rows.shard(model.encoder, mesh, num_shards=24)
        return model, cx.Optimizer(model, optax.adam(0.01), seed=0)

    fitted(make, folder, Parts(), read=False)
    exported = cx.training.export(folder, folder / "out")
    return {path.name: np.load(path) for path in exported if path.suffix == ".npy"} if jax.process_index() == 0 else {}


def built_cache(folder: Path) -> dict[str, np.ndarray]:
    """A cache that several runs would share, built anew where it was not finished."""
    os.environ["CANDAX_CACHE"] = str(folder / "cache")
    (folder / "metrics.jsonl").touch()

    def build() -> Any:
        time.sleep(3 * STEP_SECONDS)
        rng = np.random.default_rng(0)
        features = csr_array(rng.random((2000, 40)).astype(np.float32) * (rng.random((2000, 40)) < 0.2))
        labels = csr_array(rng.random((2000, 30)) < 0.1)
        examples = cx.data.Examples(features, labels)
        return cx.data.Dataset("made", examples, examples)

    found = cache.cached("made", "1", {"of": 1}, build)
    return {"features": found.train.features.data, "labels": found.train.labels.indices}


def own_step(folder: Path) -> dict[str, np.ndarray]:
    """A training step and a loop as a user writes them, with orbax for what is kept."""
    import orbax.checkpoint as ocp

    training = problems.Training(problems.model(cx.samplers.log_uniform(8), cx.losses.nce), seed=0)
    source = problems.Source()
    both = training.model, training.optimizer
    options = ocp.CheckpointManagerOptions(save_interval_steps=4, max_to_keep=2)
    with ocp.CheckpointManager((folder / "checkpoints").absolute(), options=options) as manager:
        done = manager.latest_step() or 0
        if done:
            nnx.update(both, manager.restore(done, args=ocp.args.StandardRestore(nnx.state(both))))
        for step in range(done, NUM_STEPS):
            (folder / "metrics.jsonl").touch()
            training.step(source[divmod(step, source.batches_per_epoch)])
            manager.save(step + 1, args=ocp.args.StandardSave(nnx.state(both)))
            time.sleep(STEP_SECONDS)
    return _arrays(both)


def exported(folder: Path) -> dict[str, np.ndarray]:
    """What a run has saved, written for other programs again and again."""
    head(cx.samplers.uniform(8), 1, folder / "run")
    found = {}
    for number in range(NUM_STEPS):
        for path in cx.training.export(folder / "run", folder / "out"):
            if path.suffix == ".npy":
                found[f"{number} {path.name}"] = np.load(path)
    return found


def words(folder: Path) -> dict[str, np.ndarray]:
    """Word vectors."""
    rng = np.random.default_rng(0)
    text = cx.data.words_of("made", [[f"w{i}" for i in rng.zipf(1.5, 40) % 60] for _ in range(200)], min_count=1)
    trained = cx.recipes.words.train_word2vec(
        text,
        epochs=10,
        dim=8,
        subsample=0,
        batch_size=64,
        learning_rate=0.002,
        folder=folder,
        checkpoint_every=100,
        progress=False,
    )
    return {"in": trained.vectors.vectors, "out": trained.outputs.vectors}


IVF = functools.partial(
    cx.samplers.ivf_bq, 6, num_centers=4, hm_num=16, num_kept=12, schedule=lambda step: step % 8 == 7
)
MIDX = cx.samplers.midx(6, num_codewords=4, schedule=lambda step: step % 8 == 7)
KERNEL = cx.samplers.kernel(6, rank=4, leaf_size=4, schedule=lambda step: step % 8 == 7)
RUNS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "log_uniform": functools.partial(head, cx.samplers.log_uniform(8), 1),
    "exact": functools.partial(head, cx.samplers.log_uniform(8), 1, tables=cx.rows.exact_adam(0.01)),
    "lsh": functools.partial(head, problems.HASHED, 1),
    "ivf": functools.partial(head, IVF(), 1),
    "ivf of bytes": functools.partial(head, IVF(codes="int8"), 1),
    "kernel": functools.partial(head, KERNEL, 1),
    "midx": functools.partial(head, MIDX, 1),
    "eight devices": functools.partial(head, cx.samplers.log_uniform(8), 8),
    "cache": built_cache,
    "own step": own_step,
    "export": exported,
    "word2vec": words,
    **commands.COMMANDS,
}


def torn(folder: Path) -> dict[str, np.ndarray]:
    """A planted fault: of what a checkpoint holds a half is lost, and nobody compares digests."""
    read = Checkpoints._read

    def half(*of: Any) -> dict[str, jax.Array]:
        found = read(*of)
        largest = max(found, key=lambda name: found[name].size)
        return found | {largest: found[largest].at[found[largest].shape[0] // 2 :].set(0)}

    Checkpoints._read = half  # type: ignore[method-assign]
    return head(cx.samplers.log_uniform(8), 1, folder)


def swallowing(folder: Path) -> dict[str, np.ndarray]:
    """A planted fault: what could not be written is not spoken of."""
    path = folder / "numbers"
    (folder / "metrics.jsonl").touch()
    if not path.exists():
        with contextlib.suppress(OSError):
            path.write_bytes(bytes(10**6))
    return {"size": np.array(path.stat().st_size if path.exists() else 0)}


def counting(folder: Path) -> dict[str, np.ndarray]:
    """A planted fault: what comes out depends on how many devices there are."""
    return {"devices": np.array(jax.device_count())}


PLANTED = {
    "skips a batch": skipping,
    "torn checkpoint": torn,
    "swallowed error": swallowing,
    "counts devices": counting,
}
SPREAD = "spread"


class Place(NamedTuple):
    """Where a run is: so many devices, of one process or of one each.

    Attributes:
        devices: of the process.
        processes: that train together.
        index: of this one.
        port: where they meet.
    """

    devices: int = 1
    processes: int = 1
    index: int = 0
    port: int = 0


def run(
    compiled: str | None, name: str, folder: str, place: Place | None = None, fault: Callable[[], Any] = tuple
) -> None:
    """Runs one to its end, which it writes into the folder.

    Args:
        compiled: folder in which runs without a fault keep what they have compiled.
        name: of the run.
        folder: of the run.
        place: None: as many devices as the run is about.
        fault: what goes wrong from the start, such as a disk that is full; an error is then written to ERROR.
    """
    place = place or Place(8 if name == "eight devices" else 1)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"{_QUICKLY_COMPILED} --xla_force_host_platform_device_count={place.devices}"
    if fault is tuple:
        # The same run is started many times.
        jax.config.update("jax_compilation_cache_dir", compiled)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if place.processes > 1:
        address = f"127.0.0.1:{place.port}"
        os.environ |= {COORDINATOR: address, NUMBER: str(place.processes), INDEX: str(place.index)}
    # Where it can be written; else Python takes another.
    os.environ["TMPDIR"], tempfile.tempdir = folder, None
    with Path(folder, LOG).open("a") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    with Path(folder, ERROR).open("w") as error:  # before the folder may not be written any more
        fault()
        try:
            found = (RUNS | PLANTED | {SPREAD: spread})[name](Path(folder))
            if place.index == 0:
                with replacing(Path(folder, END)) as file:
                    np.savez(file, **found)
            if place.processes > 1:
                jax.distributed.shutdown()  # waits for the others; at the end of a program it is called by itself
        except Exception as raised:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            json.dump([type(raised).__name__, isinstance(raised, OSError), str(raised)], error)
            raise
