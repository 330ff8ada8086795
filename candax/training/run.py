"""One run of training: what it has done so far, what it measures, where it writes."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx
from jaxtyping import Array

from candax.checks import check_ids
from candax.training import agreement
from candax.training.checking import check, has_nan
from candax.training.checkpoints import Checkpoints
from candax.training.feed import Fed, field, size_of
from candax.training.means import Means
from candax.training.metrics_log import Bar, Clock, MetricsLog
from candax.training.optimizer import Optimizer
from candax.training.trainer import LossFunction, Trainer, check_divides, head_of, loss_of_labels, parts_of
from candax.training.validation import Validation

Callback = Callable[[int, dict[str, float]], Any]

# A loss is looked at this many steps later, so that the device never waits for the host.
_LATER = 8
# In what a checkpoint says of the best: the model of this step should have been measured, but that failed.
_UNMEASURED = "unmeasured"


class Fitted(NamedTuple):
    """The result of training.

    Attributes:
        model: the trained model, as it is after the last step, in training mode: call ``model.eval()`` before you use
            it.
        optimizer: its optimizer.
        step: the number of steps done since the start of the run.
        records: what was logged on the way, oldest first.
        best: step and value of the best validation, with ``Validation(best=)``.
        stopped: why training ended before ``num_steps``: "callback" or "patience"; None if it did not.
        seconds: of training since the start of the run, as in the records.
    """

    model: nnx.Module
    optimizer: Optimizer
    step: int
    records: list[dict[str, Any]]
    best: dict[str, Any] | None
    stopped: str | None
    seconds: float


class Run:
    """What a run has done so far and where it writes."""

    def __init__(
        self,
        model: nnx.Module,
        optimizer: Optimizer,
        loss_fn: LossFunction | None,
        accumulate: int,
        validation: Validation | None,
        callback: Callback | None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.loss_fn = loss_of_labels if loss_fn is None else loss_fn
        self.validation, self.callback = validation, callback
        self.trainer = Trainer(model, optimizer, self.loss_fn, accumulate)
        self._accumulate = accumulate
        self.checkpoints: Checkpoints | None = None
        self.best_checkpoints: Checkpoints | None = None
        self.done = 0
        self.stopped: str | None = None
        # Best value so far, its step, the number of measurements since, and name and mode of what is measured.
        self.best: dict[str, Any] = {}
        self.log: MetricsLog
        self.clock: Clock
        self.bar: Bar
        self._saved = 0
        self._stated: int | None = None  # the best step, as the newest checkpoint has it
        self._last: Fed | None = None
        self._restored: dict[str, Any] | None = None
        self._records: list[dict[str, Any]] = []
        self._unread: deque[tuple[tuple[Fed, ...], tuple[Array, Any]]] = deque()
        self._means = Means({})
        self._seconds: float | None = None  # of training until the checkpoint that the run goes on from
        # Whether a step that was looked at has written nothing.
        self._failed = False
        self._shapes: set[Any] = set()

    def open(self, stack: contextlib.ExitStack, folder: Path, identity: dict[str, Any], keep: int) -> None:
        """Opens the folders of checkpoints, and restores the newest one, if there is one."""
        self.checkpoints = stack.enter_context(Checkpoints(folder, identity=identity, keep=keep))
        self.checkpoints.check(self.model, self.optimizer)
        if self.validation is not None and self.validation.best is not None:
            # Two: the one that the newest checkpoint states, and a better one since.
            best = Checkpoints(folder, identity=identity, keep=2, name="best")
            self.best_checkpoints = stack.enter_context(best)
        if self.checkpoints.latest_step is None:
            return
        about = self.checkpoints.restore(self.model, self.optimizer)
        self.trainer.reload()
        self.done = self._saved = about.step
        self.best, self._restored = self._of_this_metric(about.validation), about.position
        self._means, self._seconds = Means(about.unrecorded), about.unrecorded.get("seconds")
        # Also of another metric: it is there until the next checkpoint states another one.
        self._stated = about.validation.get("step")
        if self.best_checkpoints is not None:
            # A run that goes on from here will reach them again.
            self.best_checkpoints.forget(lambda step: step > about.step)

    def _of_this_metric(self, best: dict[str, Any]) -> dict[str, Any]:
        """What a checkpoint says of the best, but none of it where it is of another number or mode."""
        asked = self.validation
        if asked is None or asked.best is None or best.get("of", asked.measure_of_best) == asked.measure_of_best:
            return best
        return {_UNMEASURED: True} if best.get(_UNMEASURED) else {}

    @property
    def position(self) -> dict[str, Any] | None:
        """Where the batches go on after the last one used."""
        return self._restored if self._last is None else self._last.position

    def is_over(self, num_steps: int | None, num_epochs: int | None) -> bool:
        """Whether all that was asked for has been done, or early stopping has already ended the run."""
        patience = None if self.validation is None else self.validation.patience
        if patience is not None and self.best.get("since", 0) >= patience:
            self.stopped = "patience"
            return True
        if num_steps is not None and self.done >= num_steps:
            return True
        position = self.position
        if num_epochs is None or position is None:
            return num_epochs == 0
        return position["epoch"] + position.get("over", False) >= num_epochs

    def check(self, fed: Fed) -> None:
        """Raises ValueError for sizes that ``accumulate`` does not divide and, with the default loss, for labels."""
        check_divides(self._accumulate, size_of(fed.batch) * jax.process_count(), f"{fed.name} to have a size that")
        if self.loss_fn is not loss_of_labels:
            return
        labels = np.asarray(parts_of(fed.batch)[1])
        where = field(fed.batch, "where")
        if where is not None and np.shape(where) == labels.shape[: np.ndim(where)]:
            labels = labels[np.asarray(where, bool)]
        check_ids(labels, head_of(self.model).num_classes, f"labels of {fed.name}")

    @contextlib.contextmanager
    def saved_on_error(self) -> Iterator[None]:
        """Saves a run of one process when a function of the user's raises, but not behind a step that wrote nothing."""
        try:
            yield
        except FloatingPointError:
            raise
        except BaseException:
            # With several processes, saving would wait for all of them.
            if (
                jax.process_count() == 1
                and not self._failed
                and all(_unsound(*looked) is None for _, looked in self._unread)
            ):
                self._unread.clear()
                self.save()
                self.wait()
            raise

    def interferes(self, done: int, fed: Fed) -> bool:
        """Whether a measurement is due after so many steps, the last one with this batch, or a sampler's refresh."""
        return self._measures(done, fed) or self.trainer.refreshes(done)

    def step(self, feds: tuple[Fed, ...], batch: Any) -> None:
        """One step of training, or several in one call, with the batches stacked."""
        with self._saved_unless_lost():
            self.trainer.refresh(self.done)
        shapes = len(feds), jax.tree.structure(batch), *(jax.typeof(leaf) for leaf in jax.tree.leaves(batch))
        examples = sum(size_of(fed.batch) for fed in feds) * jax.process_count()
        if shapes in self._shapes:
            out = self._stepped(feds, batch)
        else:  # this step compiles, which is not part of the training time
            with self.clock.paused(self.trainer.arrays):
                if len(feds) == 1:
                    out, examples = jax.block_until_ready(self._stepped(feds, batch)), 0
                else:
                    self._stepped(feds, batch, self.trainer.compile_steps)
            self.clock.start()
            if len(feds) > 1:
                out = self._stepped(feds, batch)
            self._shapes.add(shapes)
        self._unread.append((feds, (out[0], self.trainer.wrote)))
        self._means.add(out, examples)
        self._last = feds[-1]
        self.done += len(feds)
        with self.saved_on_error():
            while len(self._unread) > max(1, _LATER // len(feds)):
                self._look()

    def _stepped(self, feds: tuple[Fed, ...], batch: Any, call: Callable[[Any], Any] | None = None) -> Any:
        with self._saved_unless_lost():
            try:
                return (call or (self.trainer.step if len(feds) == 1 else self.trainer.steps))(batch)
            except Exception as error:
                error.add_note(f"This was in the step of {feds[0].name}.")
                raise

    @contextlib.contextmanager
    def _saved_unless_lost(self) -> Iterator[None]:
        """Saves on an error where the arrays were not taken: all is then as it was after the step before."""
        try:
            yield
        except Exception:
            if self.trainer.lost:
                raise
            with self.saved_on_error():
                raise

    def _look(self) -> None:
        """Raises where the oldest call not looked at so far has a loss that is not finite, or has written nothing."""
        feds, looked = self._unread.popleft()
        found = _unsound(*looked)
        if found is None:
            return
        at, value = found
        fed, after = feds[at], len(feds) - 1 - at + sum(len(later) for later, _ in self._unread)
        self._failed = True
        self.trainer.synchronise()
        try:
            check(self.model, fed.batch, call=self.loss_fn)
        except ValueError as error:
            raise ValueError(f"{fed.name}: {error}") from None
        where = f"for {fed.name}, at step {self.done - after}"
        if math.isfinite(value):
            raise FloatingPointError(
                f"the loss is {value:.6g}, but its gradients, or rows that it looked up, are not finite {where}: "
                "nothing was written. A norm, square root, logarithm or quotient at 0 may have such a gradient, also "
                "where jnp.where drops its value: keep its argument from 0. If there is none, lower the learning rate."
            )
        raise FloatingPointError(
            f"the loss is {value} {where}. Lower the learning rate, clip gradients (clip_norm), or choose a more "
            "stable loss or more samples."
        )

    def record(self) -> None:
        """Logs the means since the last record."""
        while self._unread:
            self._look()
        means = self._means.of_all()
        if means is None:
            return
        seconds, rate = self.clock.record(self._means.examples)
        self._write({"step": self.done, "seconds": seconds, **means, "examples_per_s": rate})
        self._means = Means({})  # what could not be written is in the checkpoint
        self.bar.show(self.done, means["loss"], rate)

    def validate(self, fed: Fed) -> None:
        """Measures the model if a measurement is due."""
        if self.validation is not None and self._measures(self.done, fed):
            self._measure(self.validation)

    def _measures(self, done: int, fed: Fed) -> bool:
        return self.validation is not None and self.validation.due(done, fed.epoch + 1 if fed.last else None)

    @property
    def measures_again(self) -> bool:
        """Whether the model of the checkpoint that was restored is still to be measured."""
        return _UNMEASURED in self.best and self.validation is not None

    def validate_again(self) -> None:
        """Measures the model of a checkpoint whose measurement failed."""
        if self.measures_again:
            assert self.checkpoints is not None
            assert self.validation is not None
            self._measure(self.validation)
            failed = self.call_back()
            self.wait()  # what the checkpoint calls the best must be there
            self.checkpoints.restate(self.best)
            self._stated = self.best.get("step")
            if failed is not None:
                raise failed

    def _measure(self, asked: Validation) -> None:
        while self._unread:
            self._look()
        self.best[_UNMEASURED] = True  # for a checkpoint that is written because of an error here
        with self.clock.paused(self.trainer.arrays):
            self.trainer.settle()
            found = agreement.of_first(asked.measure(self.model))
            best = {name: of for name, of in self.best.items() if name != _UNMEASURED}
            if asked.best is not None:
                best = self._compared(asked, asked.best, found)
            self._write({"step": self.done, "seconds": self.clock.seconds, **found})
        self.best = best
        if asked.patience is not None and best.get("since", 0) >= asked.patience:
            self.stopped = "patience"

    def _compared(self, asked: Validation, name: str, found: dict[str, float]) -> dict[str, Any]:
        """What is known of the best after a measurement; where it is this one, its model is saved."""
        if name not in found:
            raise ValueError(f"expected the metric to return {name!r}, Validation(best=), got {sorted(found)}.")
        value, since = found[name], self.best.get("since", 0) + 1
        if asked.better(value, self.best.get("value")):
            best = {"step": self.done, "value": value, "since": 0, "of": asked.measure_of_best}
            if self.best_checkpoints is not None:
                self.wait()
                self.best_checkpoints.forget(lambda step: step != self._stated)
                self._save_in(self.best_checkpoints, best)
            return best
        ends = asked.patience is not None and since >= asked.patience
        if math.isnan(value) or (ends and "value" not in self.best):
            raise asked.no_best(value, self.done)
        kept: dict[str, Any] = {key: self.best[key] for key in ("step", "value") if key in self.best}
        return {**kept, "since": since, "of": asked.measure_of_best}

    def _write(self, record: dict[str, Any]) -> None:
        self.log.write(record)
        self._records.append(record)

    def call_back(self) -> Exception | None:
        """Gives the records of this step to the callback, and returns what it raised."""
        records, self._records = self._records, []
        if self.callback is None or not records:
            return None
        self.trainer.synchronise()
        try:
            stops = [self.callback(self.done, {name: float(of) for name, of in record.items()}) for record in records]
            for stop in stops:
                if stop is not None and not (np.ndim(stop) == 0 and np.asarray(stop).dtype == bool):
                    raise ValueError(f"expected the callback to return True to stop, or None, got {stop!r}.")
            self.trainer.reload()  # it may have changed the model
        except Exception as error:
            return error
        if any(stops):
            self.stopped = "callback"
        return None

    def save(self) -> None:
        """Writes a checkpoint, unless this step has one already."""
        if self.checkpoints is None or self._saved == self.done or self.position is None:
            return
        with self.clock.paused(self.trainer.arrays):
            if self.best_checkpoints is not None:
                self.best_checkpoints.wait()  # what this checkpoint calls the best must be there
            unrecorded = {**self._means.to_save(), "seconds": self.clock.seconds}
            self._save_in(self.checkpoints, self.best, unrecorded)
            if not self._saved and self.callback is not None:  # it may read the first one, as any later one
                self.checkpoints.wait()
        self._saved, self._stated = self.done, self.best.get("step")

    def _save_in(
        self, checkpoints: Checkpoints, best: dict[str, Any], unrecorded: dict[str, Any] | None = None
    ) -> None:
        assert self.position is not None
        self.trainer.settle()
        # A step whose loss is finite may still have written NaN.
        if has_nan(self.model):
            raise FloatingPointError(
                f"the model has NaN after step {self.done}: it is not saved, and checkpoints before it are kept. Lower "
                "the learning rate, clip gradients (clip_norm), or choose a more stable loss or more samples."
            )
        checkpoints.save(self.done, self.model, self.optimizer, self.position, best, unrecorded)

    def wait(self) -> None:
        """Waits until all is on disk."""
        for checkpoints in (self.best_checkpoints, self.checkpoints):
            if checkpoints is not None:
                checkpoints.wait()

    def interrupt(self) -> None:
        """Ends a run that is to go on: its next record, and not one here, covers the same steps as without a stop."""
        with self.saved_on_error():
            while self._unread:
                self._look()
        self.save()
        self.wait()

    def start_clock(self) -> None:
        """The clock goes on from where the run stopped."""
        seconds = self.log.records[-1]["seconds"] if self.log.records else 0.0
        # Not at a measurement, whose record has no examples.
        recorded = next((of["seconds"] for of in reversed(self.log.records) if "examples_per_s" in of), 0.0)
        self.clock = Clock(seconds if self._seconds is None else self._seconds, recorded)

    def finish(self, *, save: bool) -> None:
        """Ends the run: writes a record and a checkpoint, unless this step has them, and waits until all is on disk.

        Where it is not to ``save``, there is a checkpoint only if there was one before: the last one must not be old.
        """
        with self.saved_on_error():
            self.record()
        failed = self.call_back()
        if save or self._saved or failed is not None:
            self.save()
        self.wait()
        if failed is not None:
            raise failed

    def result(self) -> Fitted:
        """The result of the run."""
        self.trainer.settle()
        best = {name: self.best[name] for name in ("step", "value")} if "value" in self.best else None
        # Of a run that has ended and lost its records, the checkpoint knows it.
        seconds = self.log.records[-1]["seconds"] if self.log.records else self.clock.seconds
        return Fitted(self.model, self.optimizer, self.done, self.log.records, best, self.stopped, seconds)


def _unsound(losses: Array, wrote: Any) -> tuple[int, float] | None:
    """The first step of a call that has not written, or has no finite loss: its number in the call, and its loss."""
    steps = zip(*(np.atleast_1d(found) for found in jax.device_get((losses, wrote))), strict=True)
    return next(((i, float(loss)) for i, (loss, wrote) in enumerate(steps) if not (wrote and np.isfinite(loss))), None)
