"""What a run reports: seconds of training, a progress bar, and metrics as JSON lines that a resumed run continues."""

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from candax.files import naming, removed, replacing


def write_atomically(path: Path, text: str) -> None:
    """Replaces a file's content in one step: readers see the old text or the new, never a part."""
    with replacing(path) as file:
        file.write(text.encode())


class MetricsLog:
    """Metrics as JSON lines in ``path``; what a killed run wrote after the step it resumes from is cut off first.

    Args:
        path: of the file, or None to keep the records in memory only.
        resumed_step: records of later steps are removed, as the run will produce them again.
        measures: whether it will do so with the measurement of this step too.
    """

    def __init__(self, path: Path | None, *, resumed_step: int, measures: bool = False) -> None:
        self._path = path
        self.records: list[dict[str, Any]] = []
        if path is not None and path.exists():
            self.records = [
                record
                for record in _complete_records(path)
                if record["step"] < resumed_step
                or (record["step"] == resumed_step and ("examples_per_s" in record or not measures))
            ]
            write_atomically(path, "".join(json.dumps(record) + "\n" for record in self.records))

    def write(self, record: dict[str, Any]) -> None:
        """Adds one record; it is on disk when this returns."""
        self.records.append(record)
        if self._path is not None:
            try:
                with naming(self._path), self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(record) + "\n")
            except FileNotFoundError as error:
                raise removed(self._path.parent) from error


def _complete_records(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")
    # Whatever follows the last newline was cut off in the middle of a write.
    return [_record(line, f"{path}, line {number}") for number, line in enumerate(lines[:-1], 1) if line]


def _record(line: bytes, where: str) -> dict[str, Any]:
    """A line's record; ValueError where it is damaged."""
    with contextlib.suppress(ValueError):
        record = json.loads(line.decode())
        if isinstance(record, dict) and isinstance(record.get("step"), int):
            return record
    raise ValueError(
        f"{where}: expected a record in JSON with its step, got {line[:60].decode(errors='replace')!r}. The file is "
        "damaged: delete this line to go on without its record."
    )


class Clock:
    """Counts the seconds of training, without those of pauses."""

    def __init__(self, seconds: float, recorded: float) -> None:
        self.seconds = seconds
        self._recorded = recorded
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
        """Waits until all work started for these arrays is done; then the clock stands still within ``with``."""
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

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        if not self._progress.disable:
            self._progress.console.print(line, markup=False, highlight=False)

    def show(self, step: int, loss: float, rate: float) -> None:
        """Moves the bar to a step."""
        self._progress.update(self._task, completed=step, loss=f"{loss:.3f}", rate=f"{rate * self._each:,.0f}")
