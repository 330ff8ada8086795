"""Seconds of training and the progress bar that shows them."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Clock:
    """Seconds of training, with pauses."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._recorded = seconds
        self._since: float | None = None

    def start(self) -> None:
        """Counts from now on."""
        self._since = time.perf_counter()

    def record(self, examples: int) -> tuple[float, float]:
        """Seconds so far, and examples per second since the last record."""
        self._count()
        passed, self._recorded = self.seconds - self._recorded, self.seconds
        return self.seconds, examples / passed if passed > 0 else 0.0

    @contextlib.contextmanager
    def paused(self, arrays: Any) -> Iterator[None]:
        """Stops the clock once all work that was started for these arrays is done."""
        jax.block_until_ready(arrays)
        self._count()
        yield
        if self._since is not None:
            self.start()

    def _count(self) -> None:
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now


class Bar:
    """A progress bar with loss, examples (or what they stand for) per second and time left."""

    def __init__(self, description: str, start: int, stop: int | None, visible: bool, unit: tuple[str, float]) -> None:
        name, self._each = unit
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn(f"loss {{task.fields[loss]}}  {{task.fields[rate]}} {name}/s"),
            TimeRemainingColumn(),
            disable=not visible,
        )
        self._task = self._progress.add_task(description, total=stop, completed=start, loss="-", rate="-")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, step: int, loss: float, rate: float) -> None:
        """After some steps."""
        self._progress.update(self._task, completed=step, loss=f"{loss:.3f}", rate=f"{rate * self._each:,.0f}")
