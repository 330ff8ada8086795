"""The training loop: batches in, progress bar, metrics and checkpoints out; a killed run resumes to the same result."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from candax.data import prefetch
from candax.training.checkpoints import Checkpoints
from candax.training.metrics_log import MetricsLog
from candax.training.step import Program, TrainState


@runtime_checkable
class BatchSource(Protocol):
    """Batches as a pure function of (seed, epoch, index), such as ``candax.data.Batches``."""

    @property
    def batches_per_epoch(self) -> int:
        """How many batches an epoch has."""
        ...

    @property
    def identity(self) -> dict[str, Any]:
        """What the sequence of batches depends on, as JSON values."""
        ...

    def __getitem__(self, position: tuple[int, int]) -> Any:
        """The batch at (epoch, index); it has ``labels`` int32[B, T] and whatever the encoder reads."""
        ...


class Fitted(NamedTuple):
    """The state after training and the records that were logged on the way, oldest first."""

    state: TrainState
    records: list[dict[str, Any]]


def fit(
    program: Program,
    state: TrainState,
    batches: BatchSource,
    *,
    num_steps: int,
    folder: str | Path | None = None,
    identity: dict[str, Any] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    log_every: int = 50,
    evaluate: Callable[[TrainState], dict[str, Any]] | None = None,
    evaluate_at: Callable[[int], bool] = lambda step: False,
    on_start: Callable[[], None] | None = None,
    description: str = "training",
    progress: bool = True,
    unit: tuple[str, float] = ("examples", 1.0),
) -> Fitted:
    """Trains until step ``num_steps`` and returns the state and the log.

    With a ``folder``, metrics go to ``metrics.jsonl`` and checkpoints to ``checkpoints/``; where the folder already
    holds a checkpoint, training goes on from it instead of from ``state``, to bit for bit the result of an unbroken
    run. Records hold ``step``, ``seconds`` (training alone: compilation, evaluation and checkpoints excluded), ``loss``
    (mean since the last record), ``examples_per_s``; those of ``evaluate`` hold its numbers and ``seconds``.

    Args:
        program: from ``build``.
        state: from ``Program.init``; donated.
        batches: see ``BatchSource``.
        num_steps: the step to stop at, counted from the start of the run.
        folder: of the run, or None to write nothing.
        identity: settings that a resumed run must share, besides those of the batches.
        checkpoint_every: steps between checkpoints; None: at the end only.
        keep: how many checkpoints are kept.
        log_every: steps between records of the loss.
        evaluate: called with the state where ``evaluate_at(step)`` says so, ``step`` being the number of steps done.
        evaluate_at: see ``evaluate``.
        on_start: called once a folder has been accepted, before the first step.
        description: text before the progress bar.
        progress: whether to show the bar.
        unit: what the bar counts a second, and how many of it an example stands for.

    Returns:
        ``Fitted(state, records)``.

    Raises:
        ValueError: for a batch with ids out of range, or a folder that holds a run with other settings.
        FloatingPointError: when the loss is no longer finite.
    """
    if num_steps < 0 or log_every < 1 or (checkpoint_every is not None and checkpoint_every < 1):
        raise ValueError(
            f"expected num_steps >= 0, log_every >= 1 and checkpoint_every >= 1, got {num_steps}, {log_every}, "
            f"{checkpoint_every}."
        )
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if folder is not None:
            full_identity = {**batches.identity, **(identity or {})}
            checkpoints = stack.enter_context(Checkpoints(folder, identity=full_identity, keep=keep))
            if checkpoints.latest_step is not None:
                state = checkpoints.restore(state)
        start = int(state.step)
        log = MetricsLog(None if folder is None else Path(folder) / "metrics.jsonl", resumed_step=start)
        bar = stack.enter_context(_Bar(description, start, num_steps, progress, unit))
        feed = stack.enter_context(contextlib.closing(prefetch(_checked(program, batches, start, num_steps))))
        if on_start is not None:
            on_start()
        clock = _Clock(log.records[-1]["seconds"] if log.records else 0.0)
        losses: list[jax.Array] = []
        for step, batch in enumerate(feed, start):
            if program.schedule(step):
                state = program.refresh(state)
            state, loss = program.step(state, batch)
            losses.append(loss)
            done = step + 1
            if done == start + 1:
                jax.block_until_ready(loss)  # the first step compiles: no part of the training time
                clock.start()
            checkpoint_due = done == num_steps or (checkpoint_every is not None and done % checkpoint_every == 0)
            # Records at checkpoints too, so that the means of a resumed run cover the same steps.
            if done % log_every == 0 or checkpoint_due:
                mean = float(np.mean(jax.device_get(losses), dtype=np.float64))
                seconds, rate = clock.record(len(losses) * batch.labels.shape[0])
                if not math.isfinite(mean):
                    raise FloatingPointError(
                        f"the loss is {mean} at step {done}. Lower the learning rate, clip gradients (clip_norm), or "
                        "choose a more stable loss or more samples."
                    )
                log.write({"step": done, "seconds": seconds, "loss": mean, "examples_per_s": rate})
                bar.show(done, mean, rate)
                losses = []
            if evaluate is not None and evaluate_at(done):
                with clock.paused(state):
                    log.write({"step": done, "seconds": clock.seconds, **evaluate(state)})
            if checkpoints is not None and checkpoint_due:
                with clock.paused(state):
                    epoch, index = divmod(done, batches.batches_per_epoch)
                    checkpoints.save(state, {"epoch": epoch, "index": index})
    return Fitted(state, log.records)


def _checked(program: Program, batches: BatchSource, start: int, stop: int) -> Iterator[Any]:
    """The batches from one step to another, each checked: JAX clamps ids that are out of range without a word."""
    for step in range(start, stop):
        position = divmod(step, batches.batches_per_epoch)
        batch = batches[position]
        check_batch(program, batch, f"batch {position[1]} of epoch {position[0]}")
        yield batch


def check_batch(program: Program, batch: Any, what: str = "the batch") -> None:
    """Raises ValueError where labels or looked-up ids are out of range, or a label stands twice in one example."""
    labels = np.asarray(batch.labels)
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"{what}: expected integer labels [B, T], got {labels.dtype}{list(labels.shape)}.")
    checks = {"labels": (labels, program.num_classes), **program.lookups(batch)}
    for name, (ids, number) in checks.items():
        low, high = (int(np.min(ids)), int(np.max(ids))) if np.size(ids) else (0, 0)
        if low < -1 or high >= number:
            raise ValueError(
                f"{what}: expected ids of {name} in 0 ... {number - 1} (-1 pads), got {low if low < -1 else high}. "
                "Check the data, or the sizes given to the model."
            )
    in_order = np.sort(labels, axis=1)
    twice = (in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] >= 0)
    if twice.any():
        example = int(np.argmax(twice.any(axis=1)))
        raise ValueError(
            f"{what}: example {example} has a label twice ({labels[example].tolist()}). Labels must be distinct."
        )


class _Clock:
    """Seconds of training, with pauses."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._recorded = seconds
        self._since: float | None = None

    def start(self) -> None:
        self._since = time.perf_counter()

    def record(self, examples: int) -> tuple[float, float]:
        """Seconds so far, and examples a second since the last record."""
        self._count()
        passed, self._recorded = self.seconds - self._recorded, self.seconds
        return self.seconds, examples / passed if passed > 0 else 0.0

    @contextlib.contextmanager
    def paused(self, state: TrainState) -> Iterator[None]:
        """Stops the clock once all work that was started for ``state`` is done."""
        jax.block_until_ready(state)
        self._count()
        yield
        if self._since is not None:
            self.start()

    def _count(self) -> None:
        if self._since is not None:
            now = time.perf_counter()
            self.seconds += now - self._since
            self._since = now


class _Bar:
    """A progress bar with loss, examples (or what they stand for) a second and time left."""

    def __init__(self, description: str, start: int, stop: int, visible: bool, unit: tuple[str, float]) -> None:
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

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def show(self, step: int, loss: float, rate: float) -> None:
        self._progress.update(self._task, completed=step, loss=f"{loss:.3f}", rate=f"{rate * self._each:,.0f}")
