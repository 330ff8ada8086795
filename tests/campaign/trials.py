"""What a part of the campaign is, and how its trials are run."""

import contextlib
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

Trial = Callable[[np.random.Generator, Path], str]


class BadError(Exception):
    """What a trial must not come to."""


class Part(NamedTuple):
    """Trials of one kind.

    Attributes:
        trial: runs one in a new folder, by the generator's numbers alone; says in a word what it tried.
        seconds: that one may take.
        prepare: is called once before, off the clock.
    """

    trial: Trial
    seconds: float
    prepare: Callable[[], object] = lambda: None


class Outcome(NamedTuple):
    """How many trials there were of each kind, and what was bad: the trial's number and why."""

    trials: dict[str, int]
    bad: list[tuple[int, str]]


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises BadError in what takes longer; in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise BadError(f"it took more than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_one(part: Part, seed: int, number: int) -> tuple[str, str | None]:
    """One trial: its kind, and why it is bad or None."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with at_most(part.seconds):
                return part.trial(np.random.default_rng([seed, number]), Path(folder)), None
        except BadError as error:
            return "bad", str(error)
        except Exception:
            return "bad", traceback.format_exc()


def run(part: Part, seed: int, *, seconds: float, at_least: int = 1) -> Outcome:
    """Trials 0, 1, 2 ... until the time is over, and so many in any case."""
    part.prepare()
    ends, number = time.monotonic() + seconds, 0
    outcome = Outcome({}, [])
    while number < at_least or time.monotonic() < ends:
        kind, why = run_one(part, seed, number)
        outcome.trials[kind] = outcome.trials.get(kind, 0) + 1
        if why is not None:
            outcome.bad.append((number, why))
        number += 1
    return outcome
