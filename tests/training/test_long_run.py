"""A run of 10^5 steps: memory and time of a step stay as they were, and indexes do not drift from what they index."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.training import long_run

ROOT = Path(__file__).parents[2]
# Of some 900. Checkpoints take one each time, what else allocates a few in the first ten thousand steps.
MEGABYTES = 8.0
# More than noise: a step that takes a third longer.
RATIO = 1.33


@pytest.mark.slow
@pytest.mark.parametrize("kind", long_run.RUNS)
def test_memory_time_and_index_stay_as_they_were(kind, tmp_path):
    # The flags of the tests make eight devices, whose threads each have an allocator that grows by itself.
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"} | {"JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.training.long_run", kind, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, env=env, check=True, stdout=subprocess.PIPE, text=True)
    memory, times = np.array(json.loads(done.stdout.splitlines()[-1])).T
    grown = (memory[-10:].mean() - memory[:10].mean()) / 2**20
    print(f"{kind}: {grown:.1f} MiB more")
    assert grown < MEGABYTES
    # The fastest thousand of ten: what else runs on the machine comes and goes.
    seconds = np.diff(times)
    assert seconds[-10:].min() < RATIO * seconds[:10].min(), seconds
