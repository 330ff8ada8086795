"""ANN Softmax, tables 3 and 4: how well encoders tell identities that they were not trained on, by method and margin.

    python -m candax.experiments.ann_tables

Generated identities (``candax.data.Identities``): 3,000 to train on with 20 samples each; verification of 6,000 pairs
of new ones (the other identity of a pair is the nearest of 64), rank-1 identification of 2,000 among 50,000
distractors, and top-1 classification of new samples of the training classes. Table 3: all methods with ArcFace (scale
64, margin .5), a tenth of the classes as candidates. Table 4: the softmax without a margin, ArcFace, CosFace (margin
.4) and D-Softmax, each over all classes and with ANN Softmax, and D-Softmax's own two ways to compute less: B (the loss
between classes of a tenth of the examples) and K (over a tenth of the classes, drawn uniformly). Random projection is
measured by its short embeddings: cosines in few coordinates are not recovered to cosines in all.

The paper's claims: with a tenth of the classes ANN Softmax is as accurate as all classes, under every margin; KNN
Softmax too; LSH Softmax, hashing forests and Partial FC lose a little, random projection and D-Softmax-B and K more.

Expected (10 minutes on 2 cores, half of them the hashing forest; one seed): verification of an untrained encoder .596,
else .943 to .960 with deviations of .01 over folds, so that it tells no method from another. Rank-1 and top-1 with
ArcFace: all classes .608 and .985, ANN .577 and .980, KNN .582 and .977, hashing forest .583 and .984, LSH .611 and
.984, Partial FC .492 and .893. Rank-1 over all classes and with ANN Softmax: softmax .562 and .530, CosFace .572 and
.541, D-Softmax .559 and .548 (B .512, K .478). Random projection to 12 coordinates does not learn ArcFace (top-1 .002).
So a tenth of the classes is nearly enough if they are near ones, and random ones lose, as the paper says; its order
among the ways to find near ones does not show. At 3,000 classes the full softmax is the quicker (6.1 ms a step, ANN
12.1, Partial FC 3.4, hashing forest 229).

With ``--epsilon 1e-8``, the usual one of Adam, all classes are far behind under ArcFace (.444 and .897): see
``ann_setup.Settings.epsilon``.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.2.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import losses, samplers
from candax.base import Sampler
from candax.experiments import ann_methods, ann_setup, setup
from candax.experiments.ann_methods import LossName, MethodName, Sizes
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically

_PROJECTED = "random_projection"


@dataclasses.dataclass(frozen=True)
class ANNTables(ann_setup.Settings):
    """Trains by every method and under every margin; prints a table, writes results.json and tables.png."""

    methods: tuple[MethodName, ...] = ann_methods.METHODS
    """Methods of table 3."""
    losses: tuple[LossName, ...] = ("softmax", "arcface", "cosface", "d_softmax")
    """Losses of table 4."""
    num_projected: int | None = None
    """Coordinates that random projection leaves of --dim; None: a fifth (the paper: 100 of 512), 0: it has no row."""
    distractors: int = 50_000
    """Identities that those to be found are hidden among."""
    out: setup.Out = Path("runs/ann_tables")
    """Folder for results.json and tables.png."""


@dataclasses.dataclass(frozen=True)
class Row(ann_setup.Measured):
    """One trained model: its loss and method, and its time a step."""

    loss: str
    method: str
    ms_per_step: float


def ann_tables(settings: ANNTables) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows, the first one of an encoder that was not trained."""
    projected = max(1, settings.dim // 5) if settings.num_projected is None else settings.num_projected
    if not 0 <= projected <= settings.dim:
        raise ValueError(
            f"expected --num-projected of 0 to --dim, got {settings.num_projected} and {settings.dim} coordinates."
        )
    problem = ann_setup.make_problem(settings, distractors=settings.distractors)
    sizes = ann_methods.sizes_of(settings, problem.batches.batches_per_epoch)
    out = setup.writable_folder(settings.out)
    about = (
        f"{settings.num_classes:,} identities, {problem.num_steps:,} steps of {settings.batch_size}, "
        f"{settings.num_sampled:,} candidates a group, {settings.num_groups} groups, k = {sizes.k}"
    )
    Console().print(about)
    plain = ann_setup.make_program(problem, None, losses.full_softmax)
    untrained = ann_setup.measure(problem, plain, plain.init(settings.seed))
    rows = [Row(**vars(untrained), loss="-", method="untrained", ms_per_step=0.0)]
    for loss, method, sampler, function in _plans(settings, sizes):
        short = projected if method == _PROJECTED else None
        model = ann_setup.make_model(problem, num_projected=short)
        trained = ann_setup.train(problem, f"{loss}, {method}", sampler, function, model=model)
        measured = ann_setup.measure(problem, trained.program, trained.state)
        rows.append(Row(**vars(measured), loss=loss, method=method, ms_per_step=trained.ms_per_step))
        # After every model: a long run that is cut off leaves what it has.
        write_atomically(
            out / "results.json",
            json.dumps({"data": about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n",
        )
    Console().print(_table(about, rows))
    _draw(rows, about, out / "tables.png")
    return rows


def _plans(settings: ANNTables, sizes: Sizes) -> list[tuple[str, str, Sampler | None, Callable[..., Any]]]:
    """Loss, method, and what to train with, each once."""
    pairs: list[tuple[LossName, MethodName]] = [("arcface", method) for method in settings.methods]
    pairs += [(loss, method) for loss in settings.losses for method in ("full_softmax", "ann_softmax")]
    plans: list[tuple[str, str, Sampler | None, Callable[..., Any]]] = [
        (loss, name, *ann_methods.method(name, sizes, ann_methods.LOSSES[loss])) for loss, name in dict.fromkeys(pairs)
    ]
    if settings.num_projected != 0 and settings.methods:
        plans.append(("arcface", _PROJECTED, None, losses.over_all_classes(ann_methods.LOSSES["arcface"])))
    if "d_softmax" in settings.losses:
        of_some = losses.over_all_classes(functools.partial(losses.d_softmax_b, share=settings.rate))
        drawn = samplers.uniform(sizes.num_sampled, replacement=False)
        plans += [("d_softmax", "d_softmax_b", None, of_some), ("d_softmax", "d_softmax_k", drawn, losses.d_softmax)]
    return sorted(plans, key=lambda plan: [*ann_methods.LOSSES].index(plan[0]))  # type: ignore[arg-type]


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), caption="time: of the same loss over all classes")
    for column in ("loss", "method"):
        table.add_column(column, no_wrap=True)
    for column in ("verification", "rank-1", "top-1", "ms/step", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    full = {row.loss: row.ms_per_step for row in rows if row.method == "full_softmax"}
    for row in rows:
        table.add_row(
            row.loss,
            row.method,
            f"{row.verification:.4f} ±{row.verification_std:.4f}",
            f"{row.rank_1:.4f}",
            f"{row.top_1:.4f}",
            f"{row.ms_per_step:.1f}",
            f"{row.ms_per_step / full[row.loss]:.2f}" if row.loss in full else "-",
        )
    return table


def _draw(rows: list[Row], title: str, path: Path) -> None:
    """Every trained model a line, every measure a column."""
    rows = rows[1:]
    names = [f"{row.loss}: {row.method}" for row in rows]
    colors = [f"C{list(dict.fromkeys(row.loss for row in rows)).index(row.loss)}" for row in rows]
    measures = {
        "verification": "verification (bars: deviation over folds)",
        "rank_1": "rank-1 identification",
        "top_1": "top-1, training classes",
    }
    with save_picture(path, columns=3, size=(14, 1.5 + 0.35 * len(rows)), share_y=True) as axes:
        for axis, (measure, label) in zip(axes, measures.items(), strict=True):
            values = [getattr(row, measure) for row in rows]
            axis.scatter(values, range(len(rows)), color=colors)
            if measure == "verification":
                spread = [row.verification_std for row in rows]
                axis.errorbar(values, range(len(rows)), xerr=spread, fmt="none", ecolor="lightgray", zorder=0)
            for loss in dict.fromkeys(row.loss for row in rows):
                # A line to compare with: all classes.
                for place, row in enumerate(rows):
                    if row.loss == loss and row.method == "full_softmax":
                        others = [i for i, other in enumerate(rows) if other.loss == loss]
                        axis.plot([values[place]] * 2, [min(others), max(others)], color=colors[place], alpha=0.5)
            axis.set(xlabel=label)
        axes[0].set_yticks(range(len(rows)), names)
        axes[0].invert_yaxis()
        axes[0].figure.suptitle(f"{title}\npaper: ANN Softmax is where all classes are (line), others to its left")


if __name__ == "__main__":
    ann_tables(tyro.cli(ANNTables))
