"""Runs that are killed at random moments and started again come to the end of one that was not, bit for bit."""

import functools
import multiprocessing
import signal
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.campaign.runs import END, LOG, RUNS, run
from tests.campaign.trials import BadError, Part

_MOST_KILLS = 4
_BEGUN = "metrics.jsonl"
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.campaign.runs"])


def start(kind: str, folder: Path, *how: Any) -> "multiprocessing.context.ForkServerProcess":
    """A process that runs, see ``runs.run`` for how."""
    process = _context.Process(target=run, args=(_compiled().name, kind, str(folder), *how))
    process.start()
    return process


@functools.cache
def _compiled() -> "tempfile.TemporaryDirectory[str]":
    """A folder of this process', which is removed at its end."""
    return tempfile.TemporaryDirectory()


@functools.cache
def whole(kind: str) -> "Whole":
    """A run that nobody kills."""
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        process = start(kind, Path(folder))
        wait_for(process, Path(folder), _BEGUN)
        begun = time.monotonic()
        process.join()
        if process.exitcode:
            raise BadError(
                f"{kind}: a run that nobody killed ended with status {process.exitcode}\n{log(Path(folder))}"
            )
        return Whole(time.monotonic() - started, time.monotonic() - begun, end(Path(folder)))


class Whole(NamedTuple):
    """How long a run takes in all and from its first record on, and its end."""

    seconds: float
    after_first: float
    end: dict[str, np.ndarray]


def end(folder: Path) -> dict[str, np.ndarray]:
    """What a run ended with."""
    with np.load(folder / END) as found:
        return dict(found)


def trial(rng: np.random.Generator, folder: Path, kind: str) -> list[str]:
    """One run, killed up to four times: its kind for each kill."""
    seconds, after_first, _ = whole(kind)
    kills = 0
    for _ in range(int(rng.integers(1, 1 + _MOST_KILLS))):
        process = start(kind, folder)
        if rng.random() < 0.3:
            process.join(float(rng.uniform(0, seconds)))
        else:  # most of the time goes into starting and compiling: once it trains
            wait_for(process, folder, _BEGUN)
            process.join(float(rng.uniform(0, after_first)))
        process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode not in (0, -signal.SIGKILL):
            raise BadError(f"{kind}: after {kills} kills it ended with status {process.exitcode}\n{log(folder)}")
    finish(kind, folder, kills)
    return [kind] * kills


def _is_there(folder: Path, pattern: str) -> bool:
    try:
        return any(folder.rglob(pattern))
    except FileNotFoundError:  # a folder was given its last name while it was looked into
        return False


def wait_for(process: "multiprocessing.context.ForkServerProcess", folder: Path, pattern: str) -> None:
    """Until the process has written a file, or ended."""
    while process.is_alive() and not _is_there(folder, pattern):
        process.join(0.01)


def finish(kind: str, folder: Path, kills: int) -> None:
    """Starts a run that was killed once more, and compares its end with that of one that nobody killed."""
    expected = whole(kind).end
    process = start(kind, folder)
    process.join()
    if process.exitcode:
        raise BadError(f"{kind}: after {kills} kills it ended with status {process.exitcode}\n{log(folder)}")
    found = end(folder)
    different = [name for name in expected if not np.array_equal(found.get(name), expected[name], equal_nan=True)]
    if different or set(found) != set(expected):
        raise BadError(f"{kind}: after {kills} kills {different or set(found) ^ set(expected)} are not as without")
    if left := [path.name for path in folder.rglob("*.unfinished")]:
        raise BadError(f"{kind}: {left} was left behind")


def log(folder: Path) -> str:
    """The last lines of what a run said."""
    return "\n".join((folder / LOG).read_text().splitlines()[-20:])


PART = Part(trial, 600.0, kinds=list(RUNS))
