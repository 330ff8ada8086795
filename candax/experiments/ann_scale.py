r"""ANN Softmax, table 6: accuracy by method as the number of classes grows.

    python -m candax.experiments.ann_scale
    python -m candax.experiments.ann_scale --min-classes 100000 --max-classes 100000 \
        --warm-start 1000 --max-steps 800 --learning-rate 3e-3
    python -m candax.experiments.ann_scale --min-classes 1000000 --max-classes 1000000 --rate 0.01 \
        --warm-start 1000 --max-steps 200 --learning-rate 3e-3

Generated identities, 10^3, 10^4, ... of them up to ``--max-classes``; top-1 accuracy on new samples of the training
classes, with the softmax of scaled cosines and a tenth of the classes as candidates, as mean and range over seeds,
which change the identities, initial values, batches and candidates. From 10^6 classes on, where a step of the full
softmax takes gigabytes and a graph of neighbours the square of it in time, only the other methods are run. Where there
is no time for an epoch, ``--warm-start`` trains the encoder on some identities before.

The paper's claims: ANN and KNN Softmax stay with the full softmax at any size; Partial FC, which draws at random, falls
behind by .3 % at 10^3 classes, 1.3 % at 10^6, 4.3 % at 10^7, 8.2 % at 10^8, LSH Softmax somewhat less.

Expected with --epochs 1 --min-steps 800 (5 minutes on 2 cores), mean of three seeds and their range: 1,000 classes: all
classes .989 (.986 to .994), ANN .983 (.978 to .990), KNN .973 (.965 to .982), Partial FC .954 (.950 to .960). 10,000
classes: all classes .840 (.820 to .877), ANN .857 (.836 to .892), KNN .825 (.807 to .858), Partial FC .588 (.531 to
.648): near classes do as well as all, random ones fall behind the more. With the encoder trained on 1,000 identities
before, three seeds: 100,000 classes (the second command, an hour on busy cores): start .784 (.755 to .837), all classes
.817 (.792 to .861), ANN .815 (.790 to .858), KNN .822 (.797 to .868), Partial FC .829 (.807 to .869); 1,000,000 (the
third, 40 minutes): start .563 (.524 to .631), ANN .589 (.554 to .652), Partial FC .585 (.550 to .651). So a few steps
after such a start need no near classes; what an epoch and more of 10^6 classes would show was not run.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), table 6.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import losses
from candax.experiments import ann_methods, ann_setup, ann_warm_start, setup
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
    warm_start: int = 0
    """Identities that the encoder is trained on beforehand; class vectors then start as means of embeddings, and a row
    "start" says how accurate these are. 0: everything starts at random."""
    warm_steps: int = 1500
    """Steps of that training, with the learning rate --warm-learning-rate."""
    warm_learning_rate: float = 1e-2
    """Of that training."""
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
    if settings.warm_steps < 1 or not 0 < settings.warm_learning_rate < float("inf"):
        raise ValueError(
            "expected --warm-steps of 1 or more and --warm-learning-rate above 0, got "
            f"{settings.warm_steps} and {settings.warm_learning_rate}."
        )
    few = settings.warm_start * settings.samples_per_class
    if settings.warm_start < 0 or 0 < few < settings.batch_size:
        raise ValueError(
            f"expected --warm-start 0 or so many identities that they have a batch of {settings.batch_size} samples, "
            f"got {settings.warm_start} with {settings.samples_per_class} samples each."
        )
    out = setup.writable_folder(settings.out)
    about = f"top-1 of new samples, {settings.seeds} seeds, candidates: {settings.rate:g} of the classes"
    if settings.warm_start:
        about += f", encoder trained on {settings.warm_start:,} identities before"
    rows: list[Row] = []
    number = settings.min_classes
    while number <= settings.max_classes:
        of_number: dict[str, Row] = {}
        for seed in range(settings.seed, settings.seed + settings.seeds):
            for method, steps, top_1, ms_per_step in _train(settings, number, seed):
                row = of_number.setdefault(method, Row(number, method, steps, [], []))
                row.top_1.append(top_1)
                row.ms_per_step.append(ms_per_step)
                # After every model: a long run that is cut off leaves what it has.
                sofar = [dataclasses.asdict(row) for row in [*rows, *of_number.values()]]
                write_atomically(out / "results.json", json.dumps({"data": about, "rows": sofar}, indent=1) + "\n")
        rows += of_number.values()
        number *= 10
    Console().print(_table(about, rows))
    _draw(rows, about, out / "scale.png")
    return rows


def _train(settings: ANNScale, num_classes: int, seed: int) -> Iterator[tuple[str, int, float, float]]:
    """Every method at one size with one seed: its name, steps, top-1 and milliseconds a step."""
    per_epoch = max(1, num_classes * settings.samples_per_class // settings.batch_size)
    steps = max(round(settings.epochs * per_epoch), settings.min_steps)
    steps = steps if settings.max_steps is None else min(steps, settings.max_steps)
    own = dataclasses.replace(settings, num_classes=num_classes, seed=seed, epochs=steps / per_epoch)
    problem = ann_setup.make_problem(own, pairs=20, probes=1, distractors=1)
    sizes = ann_methods.sizes_of(own, per_epoch)
    model, loss = None, LOSSES["softmax"]
    if settings.warm_start:
        beforehand = dataclasses.replace(own, learning_rate=settings.warm_learning_rate)
        model = ann_warm_start.make_pretrained(
            dataclasses.replace(problem, settings=beforehand),
            num_classes=settings.warm_start,
            num_steps=settings.warm_steps,
        )
        program = ann_setup.make_program(problem, None, losses.over_all_classes(loss), model=model)
        yield "start", 0, ann_setup.top_1(problem, program, program.init(seed)), 0.0
    for method in settings.methods:
        if num_classes < _TOO_MANY.get(method, num_classes + 1):
            name = f"{num_classes:,} classes, {method}, seed {seed}"
            trained = ann_setup.train(problem, name, *ann_methods.method(method, sizes, loss), model=model)
            top_1, ms_per_step = ann_setup.top_1(problem, trained.program, trained.state), trained.ms_per_step
            del trained  # a state of many classes, beside the next one
            yield method, steps, top_1, ms_per_step


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
            if method != "start":
                axes[1].plot(sizes, [np.mean(row.ms_per_step) for row in some], "o-", label=method, **look)
        axes[0].set(xlabel="classes", ylabel="top-1 (mean and range over seeds)", xscale="log")
        axes[1].set(xlabel="classes", ylabel="ms a step, encoder included", xscale="log", yscale="log")
        axes[0].legend()
        axes[0].figure.suptitle(f"{title}\npaper: random candidates fall behind as classes grow, retrieved ones do not")


if __name__ == "__main__":
    ann_scale(tyro.cli(ANNScale))
