"""The training loop: batches in, progress bar, metrics and checkpoints out; a killed run resumes to the same result."""

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from flax import nnx

from candax.checks import checked
from candax.data import prefetch
from candax.training import agreement
from candax.training.calls import as_here, calls
from candax.training.feed import BatchSource, Fed, Feed
from candax.training.metrics_log import Bar, MetricsLog
from candax.training.optimizer import Optimizer
from candax.training.run import Callback, Fitted, Run
from candax.training.trainer import LossFunction
from candax.training.validation import Validation

# Signals that ask a run to stop: it finishes its step, writes, and says how to go on.
_ASKING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Raised when a run was asked to stop (Ctrl-C, SIGTERM); with a folder, it has saved all it needs to go on."""


@checked
def fit(
    model: nnx.Module,
    optimizer: Optimizer,
    batches: Iterable[Any] | BatchSource | Callable[[], Iterable[Any]],
    *,
    num_steps: int | None = None,
    num_epochs: int | None = None,
    loss_fn: LossFunction | None = None,
    accumulate: int = 1,
    steps_per_call: int = 1,
    validation: Validation | None = None,
    callback: Callback | None = None,
    folder: str | Path | None = None,
    identity: dict[str, Any] | None = None,
    checkpoint_every: int | None = None,
    keep: int = 3,
    save_last: bool = True,
    log_every: int = 50,
    skip: bool = False,
    on_start: Callable[[], None] | None = None,
    description: str = "training",
    progress: bool = True,
    unit: tuple[str, float] = ("examples", 1.0),
) -> Fitted:
    """Trains a model of your own that has a ``cx.Head``; ``cx.value_and_grad`` and ``cx.Optimizer`` in a loop.

    With a ``folder``, metrics go to ``metrics.jsonl`` and checkpoints to ``checkpoints/``; where the folder already
    holds a checkpoint, training goes on from it, and the result is bit for bit that of an unbroken run. (With an exact
    optimizer, such as ``cx.rows.exact_adam``, that is so where the unbroken run writes a checkpoint at the same step:
    saving settles all rows, and rows that take their missed steps in two parts are rounded once more, by some 1e-7.)
    Records hold ``step``, ``seconds`` (training alone: without compilation, validation and checkpoints), ``loss`` and
    what ``loss_fn`` returned beside it (means since the last record), and ``examples_per_s``; records of the validation
    hold ``step``, ``seconds`` and its numbers. Learning-rate schedules are optax's, in the optimizer.

    The first Ctrl-C or SIGTERM lets the step end, writes a checkpoint and raises ``cx.training.Interrupted``, a
    ``KeyboardInterrupt`` whose message says how to go on.

    Args:
        model: called with a batch (or with the inputs of a pair), it gives embeddings ``[..., dim]``. Trained in place.
        optimizer: of this model.
        batches: any iterable of dicts, tuples, named tuples or dataclasses of arrays, such as a list, a grain or a
            torch loader or a generator, iterated anew for each epoch; or a function that makes one for each epoch; or a
            ``BatchSource``. A thread makes batches and brings them to the device, two steps ahead, or up to two calls
            with ``steps_per_call``. With several processes, each gives its part of the batch.
        num_steps: the step to stop at, counted from the start of the run.
        num_epochs: the number of epochs to stop after. With neither ``num_steps`` nor this, one epoch.
        loss_fn: ``loss_fn(model, batch) -> loss``, or ``(loss, {name: number})``, where ``"weight"`` names the sum of
            the weights of its predictions, by which micro-batches and records are averaged. Default: the loss of the
            head for the batch's ``labels`` (``where``, ``weights``, ``more_labels``); a pair means (inputs, labels).
            One of your own is compiled anew in each call of ``fit``, with the values that it reads then. With the
            default, models made alike share one program: a global that the model reads keeps its first value there.
        accumulate: how many micro-batches a batch is cut into, computed one after the other to save memory.
        steps_per_call: how many steps the device does in one call, on batches of equal shapes. For small models, whose
            steps take no longer than what Python does for each. A call ends early, and its steps are done one by one,
            at the end of an epoch and wherever ``log_every`` (50 unless given), ``checkpoint_every``, ``validation`` or
            a sampler's schedule ask for something: give them multiples of it. Functions among these are asked ahead,
            in a thread: they may read the number of the step alone. A stop waits for the end of the call. A run that
            an error or a smaller ``num_steps`` ends within a call goes on with single steps, which may round
            otherwise. Not with a mesh or several processes.
        validation: what to measure on the way, and when to stop.
        callback: ``callback(step, metrics)``, called with each record; training stops when it returns True. An error
            that it raises ends the run, which is saved first. It may look at the model and change its values (after a
            measurement that is made again when a run goes on, the next checkpoint has the change); arrays taken from
            the model live until the next step: copy what is to be kept (``jnp.copy``).
        folder: of the run, or None to write nothing.
        identity: settings that a resumed run must share, besides those of the batches: JSON values.
        checkpoint_every: steps between checkpoints; None: at the end only.
        keep: how many checkpoints are kept.
        save_last: whether to write a checkpoint at the end of a run that has none yet; False where what comes of the
            model is saved elsewhere, and only a run that is stopped on the way needs one.
        log_every: steps between records of the loss.
        skip: go on from a checkpoint also where the batches have no position: they are taken from the start, and those
            of the steps done are thrown away.
        on_start: called once a folder has been accepted, before the first step.
        description: text before the progress bar.
        progress: whether to show the bar.
        unit: what the bar counts per second, and how many of them an example stands for.

    Returns:
        ``Fitted``.

    Raises:
        ValueError: for labels or ids out of range, batches of another kind or without a position to go on from, a
            folder that holds another run, ``steps_per_call`` above 1 on a mesh or in several processes.
        FloatingPointError: when a loss is not finite, or a gradient behind a finite loss; the step has written nothing.
        Interrupted: when the run was asked to stop.

    Example:
        >>> import jax.numpy as jnp, optax, candax as cx
        >>> from flax import nnx
        >>> class Model(nnx.Module):
        ...     def __init__(self):
        ...         self.words = cx.Embed(100, 8, rngs=nnx.Rngs(0))
        ...         self.head = cx.Head(100, table=self.words, sampler=cx.samplers.uniform(16), rngs=nnx.Rngs(1))
        ...     def __call__(self, words):
        ...         return self.words(words)
        >>> model = Model()
        >>> batches = [(jnp.arange(8), jnp.arange(1, 9))] * 3
        >>> cx.training.fit(model, cx.Optimizer(model, optax.adam(1e-2)), batches, num_epochs=2, progress=False).step
        6
    """
    _check_at_least(0, num_steps=num_steps, num_epochs=num_epochs)
    _check_at_least(1, log_every=log_every, checkpoint_every=checkpoint_every, accumulate=accumulate)
    _check_at_least(1, steps_per_call=steps_per_call)
    if num_steps is None and num_epochs is None:
        num_epochs = 1
    feed = Feed(batches, num_epochs, positions=folder is not None)
    run = Run(model, optimizer, loss_fn, accumulate, validation, callback)
    if steps_per_call > 1 and (run.trainer.mesh is not None or jax.process_count() > 1):
        raise ValueError(f"expected steps_per_call=1 on a mesh and in several processes, got {steps_per_call}.")

    def logged(step: int) -> bool:
        return step % log_every == 0 or checkpointed(step) or step == num_steps

    def checkpointed(step: int) -> bool:
        return checkpoint_every is not None and step % checkpoint_every == 0

    def ends(step: int, fed: Fed) -> bool:
        return fed.last or logged(step) or run.interferes(step, fed)

    with contextlib.ExitStack() as stack:
        if folder is not None:
            run.open(stack, Path(folder), {**feed.identity, **(identity or {})}, keep)
        start = run.done
        # One process writes for all.
        log = None if folder is None or jax.process_index() else Path(folder) / "metrics.jsonl"
        run.log = MetricsLog(log, resumed_step=start, measures=run.measures_again)
        run.start_clock()
        run.bar = stack.enter_context(Bar(description, start, _total(batches, num_steps, num_epochs), progress, unit))
        run.validate_again()
        if run.is_over(num_steps, num_epochs):
            if start:
                run.bar.say(f"{folder} holds this run at step {start}, its end: nothing was trained.")
            return run.result()
        left = None if num_steps is None else num_steps - start
        fed = itertools.islice(feed.start(start, run.position, skip), left)
        over = threading.Event()
        placed = calls(fed, run.check, run.trainer.place, steps_per_call, start, ends, over.is_set)
        # What is being made while a call runs is a call itself.
        source = stack.enter_context(contextlib.closing(prefetch(as_here(placed), 2 if steps_per_call == 1 else 1)))
        stack.callback(over.set)
        signals = stack.enter_context(_Signals())
        if on_start is not None:
            on_start()
        stack.callback(run.trainer.synchronise)
        while run.stopped is None and (num_steps is None or run.done < num_steps):
            item = next(source, None)
            with run.saved_on_error():
                if jax.process_count() > 1:
                    agreement.check_batch(item, run.done)
                if isinstance(item, Exception):
                    raise item
            if item is None:
                break
            feds, batch = item
            run.step(feds, batch)
            # Records at checkpoints too, so that the means of a resumed run cover the same steps.
            if logged(run.done):
                with run.saved_on_error():
                    run.record()
            with run.saved_on_error():
                run.validate(feds[-1])
                failed = run.call_back()
                run.stopped, asked = agreement.all_stop(run.stopped, signals.asked, failed)
            if checkpointed(run.done):
                run.save()
            if asked is not None and run.done != num_steps:
                signals.obeyed = True
                run.interrupt()
                skips = not skip and run.position is not None and not feed.returns_to(run.position)
                raise Interrupted(_how_to_go_on(asked, run.done, folder, skips))
        run.finish(save=save_last or not run.is_over(num_steps, num_epochs))
        if run.stopped is None and not run.is_over(num_steps, num_epochs):
            raise ValueError(
                f"expected batches for {_asked_for(num_steps, num_epochs)}, got batches for {run.done} steps only"
                f"{'' if folder is None else f'; the run is saved in {folder}'}. An iterator that is used up cannot be "
                "started again: pass a list, a loader, or an object whose __iter__ starts anew; or ask for less."
            )
    return run.result()


def _check_at_least(least: int, **numbers: int | None) -> None:
    for name, number in numbers.items():
        if number is not None and number < least:
            raise ValueError(f"expected {name} to be an integer >= {least}, got {number!r}.")


def _total(batches: Any, num_steps: int | None, num_epochs: int | None) -> int | None:
    """Steps of the whole run, where they are known."""
    per_epoch = getattr(batches, "batches_per_epoch", None)
    if per_epoch is None:
        with contextlib.suppress(TypeError):  # torch's loaders of streams have a __len__ that raises
            per_epoch = len(batches)
    whole = None if per_epoch is None or num_epochs is None else per_epoch * num_epochs
    return min((number for number in (num_steps, whole) if number is not None), default=None)


def _asked_for(num_steps: int | None, num_epochs: int | None) -> str:
    asked = {"steps": num_steps, "epochs": num_epochs}
    return " and ".join(f"{number} {what}" for what, number in asked.items() if number is not None)


def _how_to_go_on(asked: str, done: int, folder: str | Path | None, skips: bool) -> str:
    if folder is None:
        return f"stopped by {asked} after step {done}. Nothing was saved: fit was given no folder."
    again = "with skip=True goes on, where the batches come in the same order" if skips else "or command again goes on"
    return f"stopped by {asked} after step {done} and saved in {folder}. The same call {again}."


class _Signals:
    """Within ``with``, the first Ctrl-C or SIGTERM is only noted; a second one of its kind acts as usual.

    Attributes:
        asked: the first signal's name.
        obeyed: to be set once the signal was acted on; otherwise the signal is sent again at the end.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.obeyed = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        # Python allows signal handlers only in the main thread; in other threads, signals are left to the caller.
        if threading.current_thread() is threading.main_thread():
            # What is ignored stays so, as SIGINT is for what a shell starts in the background.
            heeded = [number for number in _ASKING if signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._note) for number in heeded}
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number in list(self._before):
            self._restore(number)
        if self.asked is not None and not self.obeyed and error is None:
            # The signal came too late to stop this run; what follows the run must stop all the same.
            signal.raise_signal(signal.Signals[self.asked])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number).name
        self._restore(number)

    def _restore(self, number: int) -> None:
        if number in self._before:
            signal.signal(number, self._before.pop(number))
