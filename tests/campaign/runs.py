"""Runs of every kind, small, each in a process that may be killed at any moment and be started again.

This module is loaded before processes fork: it may import JAX, and must not use it.
"""

import functools
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax.data import cache
from candax.files import replacing
from tests.training import problems

NUM_STEPS = 24
END = "end.npz"
# So long a step takes at least, so that a kill may come between any two.
STEP_SECONDS = 0.03


def fitted(make: Callable[[], Any], folder: Path, batches: Any, **options: Any) -> dict[str, np.ndarray]:
    """The weights, optimizer and sampler of a run that goes on from what the folder holds."""
    model, optimizer = make()

    def slowly(step: int, metrics: Mapping[str, float]) -> None:
        time.sleep(STEP_SECONDS)

    cx.training.fit(
        model, optimizer, batches, num_steps=NUM_STEPS, folder=folder, checkpoint_every=4, keep=2, log_every=1,
        callback=slowly, progress=False, **options,
    )  # fmt: skip
    leaves, _ = jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(nnx.state((model, optimizer))))
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


def head(sampler: Any, mesh_of: int, folder: Path, batches: Any = None) -> dict[str, np.ndarray]:
    """A classifier, on one device or with its classes over several."""

    def make() -> Any:
        mesh = jax.sharding.Mesh(np.array(jax.devices()[:mesh_of]), ("classes",)) if mesh_of > 1 else None
        placed = {} if mesh is None else {"mesh": mesh}
        model = problems.model(sampler, cx.losses.css, **placed)
        if mesh is not None:
            cx.rows.shard(model.encoder, mesh)
        return model, cx.Optimizer(model, optax.adam(0.01), seed=0)

    return fitted(make, folder, batches or problems.Source())


def built_cache(folder: Path) -> dict[str, np.ndarray]:
    """A cache that several runs would share, built anew where it was not finished."""
    os.environ["CANDAX_CACHE"] = str(folder / "cache")

    def build() -> Any:
        time.sleep(3 * STEP_SECONDS)
        rng = np.random.default_rng(0)
        from scipy.sparse import csr_array

        features = csr_array(rng.random((2000, 40)).astype(np.float32) * (rng.random((2000, 40)) < 0.2))
        labels = csr_array(rng.random((2000, 30)) < 0.1)
        examples = cx.data.Examples(features, labels)
        return cx.data.Dataset("made", examples, examples)

    found = cache.cached("made", "1", {"of": 1}, build)
    return {"features": found.train.features.data, "labels": found.train.labels.indices}


LSH = cx.samplers.lsh(
    num_tables=4,
    num_hashes=3,
    budget=12,
    fill="uniform",
    num_groups=1,
    schedule=cx.samplers.exponential_schedule(6, growth=1.5),
)
IVF = cx.samplers.ivf_bq(6, num_centers=4, hm_num=16, num_kept=12, schedule=lambda step: step % 8 == 7)
RUNS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "log_uniform": functools.partial(head, cx.samplers.log_uniform(8), 1),
    "lsh": functools.partial(head, LSH, 1),
    "ivf": functools.partial(head, IVF, 1),
    "eight devices": functools.partial(head, cx.samplers.log_uniform(8), 8),
    "cache": built_cache,
}
PLANTED = {"skips a batch": skipping}


def run(name: str, folder: str) -> None:
    """Runs one to its end, which it writes into the folder."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={8 if name == 'eight devices' else 1}"
    found = (RUNS | PLANTED)[name](Path(folder))
    with replacing(Path(folder, END)) as file:
        np.savez(file, **found)  # type: ignore[arg-type]
