"""Runs that are killed at random moments and started again come to the end of one that was not, bit for bit."""

import functools
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.campaign.runs import END, NUM_STEPS, RUNS, STEP_SECONDS, run
from tests.campaign.trials import BadError, Part

_KINDS = list(RUNS)
_MOST_KILLS = 4
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.campaign.runs"])


def start(kind: str, folder: Path) -> "multiprocessing.context.ForkServerProcess":
    process = _context.Process(target=run, args=(kind, str(folder)))
    process.start()
    return process


@functools.cache
def whole(kind: str) -> tuple[float, dict[str, np.ndarray]]:
    """How long a run takes that nobody kills, and its end."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        process = start(kind, Path(folder))
        process.join()
        if process.exitcode:
            raise BadError(f"{kind}: a run that nobody killed ended with status {process.exitcode}")
        return time.monotonic() - started, _end(Path(folder))


def _end(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / END) as found:
        return dict(found)


def trial(rng: np.random.Generator, folder: Path, kinds: Sequence[str] = _KINDS) -> str:
    """One run, killed up to four times."""
    kind = kinds[int(rng.integers(0, len(kinds)))]
    seconds, _ = whole(kind)
    kills = 0
    for _ in range(int(rng.integers(1, 1 + _MOST_KILLS))):
        process = start(kind, folder)
        if rng.random() < 0.3:
            process.join(float(rng.uniform(0, seconds)))
        else:  # most of the time goes into starting and compiling: once it trains
            wait_for(process, folder / "metrics.jsonl")
            process.join(float(rng.uniform(0, 1.2 * NUM_STEPS * STEP_SECONDS)))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode not in (0, -signal.SIGKILL):
            raise BadError(f"{kind}: after {kills} kills it ended with status {process.exitcode}")
    finish(kind, folder, kills)
    return kind


def wait_for(process: "multiprocessing.context.ForkServerProcess", path: Path) -> None:
    """Until the process has written a file, or ended."""
    while process.is_alive() and not path.exists():
        process.join(0.01)


def finish(kind: str, folder: Path, kills: int) -> None:
    """Starts a run that was killed once more, and compares its end with that of one that nobody killed."""
    _, expected = whole(kind)
    process = start(kind, folder)
    process.join()
    if process.exitcode:
        raise BadError(f"{kind}: after {kills} kills it ended with status {process.exitcode}")
    found = _end(folder)
    different = [name for name in expected if not np.array_equal(found.get(name), expected[name], equal_nan=True)]
    if different or set(found) != set(expected):
        raise BadError(f"{kind}: after {kills} kills {different or set(found) ^ set(expected)} are not as without")
    if left := [path.name for path in folder.rglob("*.unfinished")]:
        raise BadError(f"{kind}: {left} was left behind")


def _prepare() -> None:
    for kind in _KINDS:
        whole(kind)


PART = Part(trial, 300.0, _prepare)
