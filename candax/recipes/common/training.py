"""How a study trains: model, data and measures of a problem, and the timed training of one method on it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

import candax as cx
from candax.base import Sampler
from candax.training.validation import Validation

Figures: TypeAlias = dict[str, Any]
# Runs a method and gives its figures; the folder, if any, is where it may keep what a killed run goes on from.
Run: TypeAlias = Callable[[Path | None], Figures]
Measure: TypeAlias = Callable[[Any], Mapping[str, Any]]

# Where curves are measured, as shares of the steps: early on more often, as that is where methods differ.
MEASURED_AT = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


@dataclasses.dataclass(frozen=True)
class Training:
    """A problem to train on: what all methods have in common.

    Attributes:
        make: ``make(sampler, loss) -> (model, optimizer)``, the same initial values each time.
        batches: as in ``fit``.
        num_steps: as in ``fit``.
        measure: figures of the trained model, a dict of JSON values.
        on_the_way: measures the curve: numbers of a model in evaluation mode; its time does not count as training.
        measured_at: where the curve is measured, as shares of the steps; 0 is before the first step.
        loss_fn: as in ``fit``.
        checkpoint_every: steps between checkpoints; a shorter training has one only where it is stopped on the way.
        progress: whether to show the bar of ``fit``.
        finish: what is measured, from the model and its optimizer; default: the model.
    """

    make: Callable[[Sampler | None, Callable[..., Any]], tuple[Any, cx.Optimizer]]
    batches: Any
    num_steps: int
    measure: Measure
    on_the_way: Measure | None = None
    measured_at: Sequence[float] = MEASURED_AT
    loss_fn: Callable[[Any, Any], Any] | None = None
    checkpoint_every: int = 500
    progress: bool = True
    finish: Callable[[Any, cx.Optimizer], Any] = lambda model, optimizer: model

    def by(self, sampler: Sampler | None, loss: Callable[..., Any], name: str = "", **changes: Any) -> Run:
        """Makes a function that trains by one method.

        Args:
            sampler: of the candidates; None with a loss over all classes.
            loss: to train with.
            name: shown before the progress bar.
            changes: attributes of this problem to replace, for this method alone.

        Returns:
            A function that gives ``steps``, ``seconds`` and ``ms_per_step`` of training alone (None for a single step),
            what ``measure`` gives, and the ``curve``: lists under ``step``, ``seconds``, ``epoch`` (where an epoch has
            a known length) and what ``on_the_way`` gives.
        """
        problem = dataclasses.replace(self, **changes)

        def run(folder: Path | None) -> Figures:
            model, figures = problem.train(sampler, loss, name, folder)
            return {**figures, **problem.measure(model)}

        return run

    def train(
        self, sampler: Sampler | None, loss: Callable[..., Any], name: str, folder: Path | None
    ) -> tuple[Any, Figures]:
        """Trains by one method; returns what is to be measured, and the figures of training alone. See ``by``."""
        from candax.training import fit  # loads orbax, which the help of a command need not

        model, optimizer = self.make(sampler, loss)
        _compile_refresh(model, sampler, self.num_steps)
        points = {max(1, round(share * self.num_steps)) for share in self.measured_at if share}
        measured = []
        if self.on_the_way is not None and 0 in self.measured_at:
            measured.append({"step": 0, "seconds": 0.0, **self.on_the_way(self.finish(model, optimizer))})
        fitted = fit(
            model,
            optimizer,
            self.batches,
            num_steps=self.num_steps,
            loss_fn=self.loss_fn,
            validation=self._validation(points, optimizer),
            folder=folder,
            checkpoint_every=self.checkpoint_every,
            keep=1,
            save_last=self.num_steps > self.checkpoint_every,
            log_every=max(1, min(50, self.num_steps // 20)),
            description=name or "training",
            progress=self.progress,
        )
        measured += [record for record in fitted.records if "loss" not in record]
        figures = {
            "steps": self.num_steps,
            "seconds": fitted.seconds,
            # The first step compiles and is not on the clock.
            "ms_per_step": 1e3 * fitted.seconds / (self.num_steps - 1) if self.num_steps > 1 else None,
            "curve": self._curve(measured),
        }
        return self.finish(model, optimizer), figures

    def _validation(self, points: set[int], optimizer: cx.Optimizer) -> Validation | None:
        measure = self.on_the_way
        if measure is None:
            return None

        def metric(model: Any, batches: Any) -> dict[str, Any]:
            return dict(measure(self.finish(model, optimizer)))

        return Validation([()], metric, every=lambda step: step in points)

    def _curve(self, measured: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
        curve = {name: [record[name] for record in measured] for name in (measured[0] if measured else ())}
        per_epoch = getattr(self.batches, "batches_per_epoch", None)
        if curve and per_epoch:
            curve["epoch"] = [step / per_epoch for step in curve["step"]]
        return curve


def _compile_refresh(model: nnx.Module, sampler: Sampler | None, num_steps: int) -> None:
    """Rebuilds the sampler of a copy of the model once, so that compiling this is not on the clock."""
    due = None if sampler is None else next((step for step in range(num_steps) if sampler.schedule(step)), None)
    if due is not None:
        graph, arrays = nnx.split(model)
        cx.refresh(nnx.merge(graph, jax.tree.map(jnp.array, arrays)), due, donate=True)  # as ``fit`` does


def begun(folder: Path) -> bool:
    """Whether there is a checkpoint to go on from. A run that was killed before its first one begins anew."""
    if not (folder / "checkpoints").exists():
        return False
    with cx.training.Checkpoints(folder, identity=None, reads=True) as saved:
        return saved.latest_step is not None


def check_begun(folder: Path, identity: Callable[[], Mapping[str, Any]]) -> None:
    """Raises ValueError now, not behind what comes before, where the folder holds a run of other settings or data."""
    if begun(folder):
        with cx.training.Checkpoints(folder, identity=dict(identity()), reads=True) as saved:
            saved.about()
