"""Several ways to train on the same data in one run, measured alike: what comparisons and the papers' tables share."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from candax import data, training
from candax.experiments import setup

# Where precision is measured, as shares of the steps: early on more often, as that is where methods differ.
_MEASURED_AT = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0)


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
    points = {max(1, round(share * steps)) for share in _MEASURED_AT}
    measure = functools.partial(training.evaluate_dataset, program, dataset=dataset, batches=batches)
    state, records = training.fit(
        program,
        program.init(settings.seed),
        batches,
        num_steps=steps,
        log_every=max(1, min(50, steps // 20)),
        evaluate=lambda state: measure(state, rows=chosen),
        evaluate_at=lambda step: step in points,
        description=f"{sampler_name} + {loss_name}" if loss_name else sampler_name,
    )
    curve = [(r["step"], r["seconds"], r["p_at_1"]) for r in records if "p_at_1" in r]
    # The first step compiles and is not on the clock.
    return Run(sampler_name, loss_name, measure(state), records[-1]["seconds"] / max(1, steps - 1), curve)


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
