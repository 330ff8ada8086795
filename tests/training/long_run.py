"""10^5 steps in a process of their own, as a user's: ``python -m tests.training.long_run lsh FOLDER``.

What it measured is the last line that it prints; an index that is not what it would be if built anew is an error.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import psutil

import candax as cx
from candax.base import Sampler
from candax.samplers.ivf.lists import arrange, list_of
from candax.samplers.lsh.tables import build
from tests.training import problems

STEPS = 100_000
EACH = 1000
SIZES = {"num_tables": 4, "num_hashes": 4, "num_buckets": 16, "hash": cx.samplers.simhash()}
LISTS = {"num_centers": 6, "hm_num": 40, "num_kept": 20}
VECTORS = "head.vectors"


def train(sampler: Sampler, folder: Path) -> tuple[Any, list[tuple[int, float]]]:
    """The trained model; at each thousandth step how many bytes the process held, and when it was."""
    source, seen = problems.Source(), []
    batches = [source[0, index] for index in range(100)]
    process = psutil.Process()

    def note(step, metrics):
        seen.append((process.memory_info().rss, time.perf_counter()))

    model = problems.model(sampler, cx.losses.css)
    optimizer = cx.Optimizer(model, optax.adam(0.003))
    for steps, callback in ((EACH, None), (STEPS, note)):  # the first checkpoint loads what writes them
        cx.training.fit(
            model, optimizer, batches, num_steps=steps, folder=folder, log_every=EACH, checkpoint_every=STEPS // 4,
            callback=callback, progress=False,
        )  # fmt: skip
    assert len(seen) == STEPS // EACH - 1
    return model, seen


def of(model):
    """The state of the sampler, and the class vectors."""
    state = model.head.state.get_value()
    assert int(state.updates) == STEPS
    return state, jax.numpy.asarray(problems.tables(model)[VECTORS])


def lsh(folder: Path) -> list[tuple[int, float]]:
    """Hash tables are those built anew from the codes, and the codes those of the vectors."""
    sampler = cx.samplers.lsh("embedding", **SIZES, capacity=problems.NUM_CLASSES, budget=12, num_groups=1)
    model, seen = train(sampler, folder)
    state, vectors = of(model)
    assert int(state.tables.evictions) == 0
    anew = build(state.tables, jax.random.key(1), state.tables.codes)
    np.testing.assert_array_equal(state.tables.loads, anew.loads)
    np.testing.assert_array_equal(np.sort(state.tables.buckets), np.sort(anew.buckets))
    index = cx.samplers.lsh_index("embedding", **SIZES, capacity=problems.NUM_CLASSES)
    followed = index.follow(state, jax.random.key(2), jax.numpy.arange(problems.NUM_CLASSES), vectors)
    np.testing.assert_array_equal(state.tables.codes, followed.tables.codes)
    return seen


def ivf(folder: Path) -> list[tuple[int, float]]:
    """Lists are those arranged anew, and the codes those of the vectors."""
    model, seen = train(cx.samplers.ivf_bq(6, **LISTS), folder)
    state, vectors = of(model)
    places, block = state.lists.places, state.codes.shape[2]
    anew = arrange(list_of(state.lists.first_block, places // block), LISTS["num_centers"], block)
    jax.tree.map(np.testing.assert_array_equal, state.lists, anew)
    index = cx.samplers.ivf_index(**LISTS)
    followed = index.follow(state, jax.random.key(2), jax.numpy.arange(problems.NUM_CLASSES), vectors)
    np.testing.assert_array_equal(state.codes, followed.codes)
    return seen


RUNS = {"lsh": lsh, "ivf": ivf}

if __name__ == "__main__":
    print(json.dumps(RUNS[sys.argv[1]](Path(sys.argv[2]))))
