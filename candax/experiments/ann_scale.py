"""ANN Softmax, table 6: accuracy by method as the number of classes grows.

    python -m candax.experiments.ann_scale
    python -m candax.experiments.ann_scale --max-classes 100000 --seeds 1 --max-steps 4000
    python -m candax.experiments.ann_scale --min-classes 1000000 --max-classes 1000000 --seeds 1 --max-steps 200

Generated identities, 10^3, 10^4, ... of them up to ``--max-classes``; top-1 accuracy on new samples of the training
classes, with the softmax of scaled cosines and a tenth of the classes as candidates, as mean and range over seeds,
which change the identities, initial values, batches and candidates. From 10^6 classes on, where a step of the full
softmax takes gigabytes and a graph of neighbours the square of it in time, only the other methods are run.

The paper's claims: ANN and KNN Softmax stay with the full softmax at any size; Partial FC, which draws at random, falls
behind by .3 % at 10^3 classes, 1.3 % at 10^6, 4.3 % at 10^7, 8.2 % at 10^8, LSH Softmax somewhat less.

Expected with --epochs 1 --min-steps 800 (13 minutes on 2 busy cores), mean of three seeds and their range: 1,000
classes: all classes .989 (.985 to .995), ANN .984 (.974 to .991), KNN .974 (.967 to .983), Partial FC .958 (.952 to
.966). 10,000 classes, where 800 steps are few: all classes .630 (.594 to .684), ANN .845 (.824 to .877), KNN .749 (.727
to .786), Partial FC .626 (.567 to .690): near classes teach sooner than all of them. What remains after long training
was not run.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), table 6.
"""

import dataclasses
import json
from pathlib import Path

import numpy as np
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.experiments import ann_methods, ann_setup, setup
from candax.experiments.ann_methods import LOSSES, MethodName
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically

# Methods whose step or build looks at all classes, and the number of classes from which on they are left out.
_TOO_MANY = {"full_softmax": 10**6, "knn_softmax": 10**6}


@dataclasses.dataclass(frozen=True)
class ANNScale(ann_setup.Settings):
    """Trains every method at every number of classes; prints a table, writes results.json and scale.png."""

    methods: tuple[MethodName, ...] = ("full_softmax", "ann_softmax", "knn_softmax", "partial_fc")
    """Methods."""
    num_classes: tyro.conf.Suppress[int] = 10_000
    min_classes: int = 1000
    """The first number of classes."""
    max_classes: int = 10_000
    """The last one; each is ten times the one before."""
    seeds: int = 3
    """Trainings of each, with seeds from --seed on."""
    epochs: float = 3
    """Passes over the samples."""
    min_steps: int = 1500
    """Training steps at least, for few classes."""
    max_steps: int | None = None
    """Training steps at most, for many."""
    out: setup.Out = Path("runs/ann_scale")
    """Folder for results.json and scale.png."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One method at one number of classes, and what each seed gave."""

    num_classes: int
    method: str
    steps: int
    top_1: list[float]
    ms_per_step: list[float]


def ann_scale(settings: ANNScale) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows."""
    if not 1 <= settings.min_classes <= settings.max_classes:
        raise ValueError(
            f"expected 1 <= --min-classes <= --max-classes, got {settings.min_classes} and {settings.max_classes}."
        )
    if settings.seeds < 1 or settings.min_steps < 1 or (settings.max_steps is not None and settings.max_steps < 1):
        raise ValueError("expected --seeds, --min-steps and --max-steps of 1 or more.")
    out = setup.writable_folder(settings.out)
    about = f"top-1 of new samples, {settings.seeds} seeds, candidates: {settings.rate:g} of the classes"
    rows: list[Row] = []
    number = settings.min_classes
    while number <= settings.max_classes:
        for method in settings.methods:
            if number < _TOO_MANY.get(method, number + 1):
                rows.append(_row(settings, number, method))
                # After every model: a long run that is cut off leaves what it has.
                write_atomically(
                    out / "results.json",
                    json.dumps({"data": about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n",
                )
        number *= 10
    Console().print(_table(about, rows))
    _draw(rows, about, out / "scale.png")
    return rows


def _row(settings: ANNScale, num_classes: int, method: MethodName) -> Row:
    """One method at one size, with all seeds."""
    per_epoch = max(1, num_classes * settings.samples_per_class // settings.batch_size)
    steps = max(round(settings.epochs * per_epoch), settings.min_steps)
    steps = steps if settings.max_steps is None else min(steps, settings.max_steps)
    row = Row(num_classes, method, steps, [], [])
    for seed in range(settings.seed, settings.seed + settings.seeds):
        own = dataclasses.replace(settings, num_classes=num_classes, seed=seed, epochs=steps / per_epoch)
        problem = ann_setup.make_problem(own, pairs=20, probes=1, distractors=1)
        sizes = ann_methods.sizes_of(own, per_epoch)
        name = f"{num_classes:,} classes, {method}, seed {seed}"
        trained = ann_setup.train(problem, name, *ann_methods.method(method, sizes, LOSSES["softmax"]))
        row.top_1.append(ann_setup.top_1(problem, trained.program, trained.state))
        row.ms_per_step.append(trained.ms_per_step)
    return row


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), caption="gap: mean over seeds of full's minus its own")
    for column in ("classes", "steps", "method", "top-1", "lowest", "highest", "gap", "ms/step"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    full = {row.num_classes: row for row in rows if row.method == "full_softmax"}
    for row in rows:
        reference = full.get(row.num_classes)
        table.add_row(
            f"{row.num_classes:,}",
            f"{row.steps:,}",
            row.method,
            f"{np.mean(row.top_1):.4f}",
            f"{min(row.top_1):.4f}",
            f"{max(row.top_1):.4f}",
            "-" if reference is None else f"{np.mean(reference.top_1) - np.mean(row.top_1):.4f}",
            f"{np.mean(row.ms_per_step):.1f}",
        )
    return table


def _draw(rows: list[Row], title: str, path: Path) -> None:
    """Accuracy, and time a step, against the number of classes."""
    with save_picture(path, columns=2, size=(12, 5), share_y=False) as axes:
        for method in dict.fromkeys(row.method for row in rows):
            some = [row for row in rows if row.method == method]
            sizes = [row.num_classes for row in some]
            mean = np.array([np.mean(row.top_1) for row in some])
            spread = [[m - min(r.top_1) for m, r in zip(mean, some, strict=True)]]
            spread.append([max(r.top_1) - m for m, r in zip(mean, some, strict=True)])
            look = {"color": "black"} if method == "full_softmax" else {}
            axes[0].errorbar(sizes, mean, yerr=spread, marker="o", capsize=4, label=method, **look)
            axes[1].plot(sizes, [np.mean(row.ms_per_step) for row in some], "o-", label=method, **look)
        axes[0].set(xlabel="classes", ylabel="top-1 (mean and range over seeds)", xscale="log")
        axes[1].set(xlabel="classes", ylabel="ms a step, encoder included", xscale="log", yscale="log")
        axes[0].legend()
        axes[0].figure.suptitle(f"{title}\npaper: random candidates fall behind as classes grow, retrieved ones do not")


if __name__ == "__main__":
    ann_scale(tyro.cli(ANNScale))
