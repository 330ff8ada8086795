"""What a part of the campaign is, and how its trials are run."""

import contextlib
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import numpy as np

Trial = Callable[..., str | list[str]]


class BadError(Exception):
    """What a trial must not come to."""


class Part(NamedTuple):
    """Trials of one kind.

    Attributes:
        trial: ``trial(rng, folder)`` runs one in a new folder, by the generator's numbers alone; says in a word, or in
            several where it tried several things, what it tried.
        seconds: that one may take.
        prepare: is called once before, off the clock.
        kinds: that trials take in turn, as their third argument.
    """

    trial: Trial
    seconds: float
    prepare: Callable[[], object] = lambda: None
    kinds: Sequence[str] = ()


class Outcome(NamedTuple):
    """How many trials there were, how often they tried each thing, and what was bad: the trial's number and why."""

    trials: int
    tried: dict[str, int]
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


def run_one(part: Part, seed: int, number: int) -> tuple[list[str], str | None]:
    """One trial: what it tried, and why it is bad or None."""
    kind = [part.kinds[number % len(part.kinds)]] if part.kinds else []
    with tempfile.TemporaryDirectory() as folder:
        try:
            with at_most(part.seconds):
                tried = part.trial(np.random.default_rng([seed, number]), Path(folder), *kind)
            return ([tried] if isinstance(tried, str) else tried), None
        except BadError as error:
            return ["bad"], str(error)
        except Exception:
            return ["bad"], traceback.format_exc()


def run(part: Part, seed: int, *, seconds: float, at_least: int = 1) -> Outcome:
    """Trials 0, 1, 2 ... until the time is over, and so many in any case."""
    part.prepare()
    ends, number = time.monotonic() + seconds, 0
    tried, bad = Counter[str](), []
    while number < at_least or time.monotonic() < ends:
        what, why = run_one(part, seed, number)
        tried.update(what)
        if why is not None:
            bad.append((number, why))
        number += 1
    return Outcome(number, tried, bad)
