"""Several ways to train on the same data in one run, measured alike: what comparisons and the papers' tables share."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from candax import data, training
from candax.base import never
from candax.experiments import setup

# Where precision is measured, as shares of the steps: early on more often, as that is where methods differ.
_MEASURED_AT = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What training came to: final figures, seconds in all and a step, and the curve of (step, seconds, score)."""

    final: dict[str, float]
    seconds: float
    seconds_per_step: float
    curve: list[tuple[int, float, float]]


def train_measured(
    program: training.Program,
    batches: training.BatchSource,
    steps: int,
    *,
    seed: int,
    on_the_way: Callable[[training.Program, training.TrainState], dict[str, float]],
    at_end: Callable[[training.Program, training.TrainState], dict[str, float]],
    score: str,
    description: str,
) -> Measured:
    """Trains a program; measures it on the way at some steps, of which ``score`` makes the curve, and at the end."""
    points = {max(1, round(share * steps)) for share in _MEASURED_AT}
    if program.schedule is not never:
        # Compiled here, so that it is not on the clock either.
        jax.block_until_ready(program.refresh(program.init(seed)))
    state, records = training.fit_program(
        program,
        program.init(seed),
        batches,
        num_steps=steps,
        log_every=max(1, min(50, steps // 20)),
        evaluate=lambda state: on_the_way(program, state),
        evaluate_at=lambda step: step in points,
        description=description,
    )
    curve = [(r["step"], r["seconds"], r[score]) for r in records if score in r]
    seconds = records[-1]["seconds"]
    # The first step compiles and is not on the clock.
    return Measured(at_end(program, state), seconds, seconds / max(1, steps - 1), curve)


@dataclasses.dataclass(frozen=True)
class Run:
    """One trained method: final figures and its curve of (step, seconds, p_at_1)."""

    sampler: str
    loss: str
    final: dict[str, float]
    seconds_per_step: float
    curve: list[tuple[int, float, float]]


def train_and_measure(
    settings: setup.Settings,
    dataset: data.Dataset,
    batches: data.Batches,
    steps: int,
    sampler_name: str,
    loss_name: str,
    sampler: Any,
    loss: Callable[..., Any],
    *,
    curve_examples: int,
) -> Run:
    """Trains one method and measures it on the way, on some test examples, and at the end on all."""
    program = setup.make_program(settings, dataset, sampler, loss)
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.permutation(len(dataset.test))[:curve_examples])

    def measure(program: training.Program, state: training.TrainState, **options: Any) -> dict[str, float]:
        return training.evaluate_dataset(state.nodes[0], dataset, batches, **options)

    measured = train_measured(
        program,
        batches,
        steps,
        seed=settings.seed,
        on_the_way=lambda program, state: measure(program, state, rows=chosen),
        at_end=measure,
        score="p_at_1",
        description=f"{sampler_name} + {loss_name}" if loss_name else sampler_name,
    )
    return Run(sampler_name, loss_name, measured.final, measured.seconds_per_step, measured.curve)


def reaching(curve: list[tuple[int, float, float]], threshold: float) -> tuple[float, float] | None:
    """Step and seconds at which a curve first reaches a precision, by straight lines; None if it never does."""
    before = np.zeros(3)
    for point in curve:
        now = np.array(point)
        if now[2] >= threshold:
            share = (threshold - before[2]) / max(now[2] - before[2], 1e-12)
            step, seconds, _ = before + min(max(share, 0.0), 1.0) * (now - before)
            return float(step), float(seconds)
        before = now
    return None
