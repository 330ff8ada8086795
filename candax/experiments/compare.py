"""`candax compare`: full softmax beside every pair of a sampler and a loss, on the same data in one run.

    candax compare                          (python-stdlib; under 5 minutes on 2 cores)

What it should show: sampled losses reach the precision of the full softmax, or nearly, in a fraction of its time a
step, and the fraction falls as the classes grow in number. The oracle `top_k` finds the hardest classes by scoring
all of them, so it is as slow as the full softmax.
"""

import dataclasses
import functools
import itertools
import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.experiments import setup
from candax.experiments.contest import Run, reaching, train_and_measure
from candax.pictures import save_picture
from candax.recipes.extreme.catalog import LossName, SamplerName
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class Compare(setup.Settings):
    """Trains full softmax and every sampler x loss pair; prints a table, writes results.json and compare.png."""

    samplers: tuple[SamplerName, ...] = ("uniform", "log_uniform", "unigram", "top_k")
    """Samplers to compare."""
    losses: tuple[LossName, ...] = ("sampled_softmax", "css", "subset_softmax")
    """Losses to compare."""
    out: setup.Out = Path("runs/compare")
    """Folder for results.json, curves.json and compare.png."""
    curve_examples: int = 5000
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One method: what `results.json` says of it."""

    sampler: str
    loss: str
    p_at_1: float
    p_at_5: float
    ms_per_step: float
    examples_per_s: float
    speedup_over_full: float
    seconds_to_90_percent: float | None


def compare(settings: Compare) -> list[Row]:
    """Runs the comparison and writes its files; returns the rows of the table."""
    setup.check(settings)
    if settings.curve_examples < 1:
        raise ValueError(f"expected --curve-examples of 1 or more, got {settings.curve_examples}.")
    out = setup.writable_folder(settings.out)
    console = Console()
    dataset = setup.load(settings)
    batches = setup.make_batches(settings, dataset)
    steps = setup.num_steps(settings, batches, default_epochs=3)
    console.print(
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test examples, "
        f"{dataset.num_features:,} features, {dataset.num_classes:,} classes\n{batches.describe()}; {steps:,} steps"
    )
    train = functools.partial(
        train_and_measure, settings, dataset, batches, steps, curve_examples=settings.curve_examples
    )
    full = train("all classes", "full_softmax", None, setup.faster_full_softmax(settings, dataset, batches))
    runs = [full]
    for sampler, loss in itertools.product(settings.samplers, settings.losses):
        runs.append(train(sampler, loss, *setup.sampler_and_loss(settings, sampler, loss)))
    rows = [_row(run, full, settings.batch_size) for run in runs]
    console.print(_table(dataset.name, rows))
    write_atomically(out / "results.json", json.dumps([dataclasses.asdict(row) for row in rows], indent=1) + "\n")
    curves = [{"sampler": run.sampler, "loss": run.loss, "step_seconds_p_at_1": run.curve} for run in runs]
    write_atomically(out / "curves.json", json.dumps(curves, indent=1) + "\n")
    draw(runs, f"{dataset.name}: {dataset.num_classes:,} classes", out / "compare.png")
    console.print(f"wrote {out / 'results.json'}, {out / 'curves.json'} and {out / 'compare.png'}")
    return rows


def _row(run: Run, full: Run, batch_size: int) -> Row:
    reached = reaching(run.curve, 0.9 * full.curve[-1][2])
    return Row(
        sampler=run.sampler,
        loss=run.loss,
        p_at_1=run.final["p_at_1"],
        p_at_5=run.final["p_at_5"],
        ms_per_step=1e3 * run.seconds_per_step,
        examples_per_s=batch_size / max(run.seconds_per_step, 1e-9),
        speedup_over_full=full.seconds_per_step / max(run.seconds_per_step, 1e-9),
        seconds_to_90_percent=None if reached is None else reached[1],
    )


def _table(name: str, rows: list[Row]) -> Table:
    # Narrow enough for 80 columns: names must not be cut off.
    table = Table(
        title=name,
        box=SIMPLE,
        padding=(0, 1, 0, 0),
        show_edge=False,
        caption="to 90 %: seconds to 90 % of full softmax's P@1",
    )
    for column in ("sampler", "loss"):
        table.add_column(column, no_wrap=True)
    for column in ("P@1", "P@5", "ms/step", "ex./s", "speed-up", "to 90 %"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        seconds = "-" if row.seconds_to_90_percent is None else f"{row.seconds_to_90_percent:.1f}"
        table.add_row(
            row.sampler,
            row.loss,
            f"{row.p_at_1:.3f}",
            f"{row.p_at_5:.3f}",
            f"{row.ms_per_step:.2f}",
            f"{row.examples_per_s:,.0f}",
            f"{row.speedup_over_full:.1f}",
            seconds,
        )
    return table


def draw(runs: list[Run], title: str, path: Path) -> None:
    """Precision against time and against steps, side by side."""
    samplers = list(dict.fromkeys(run.sampler for run in runs[1:]))
    losses = list(dict.fromkeys(run.loss for run in runs[1:]))
    styles = ("-", "--", ":", "-.")
    with save_picture(path, columns=2, size=(13, 5.5), share_y=True) as axes:
        for run in runs:
            look: dict[str, Any] = {"color": "black", "linewidth": 2.5}
            label = "full softmax"
            if run is not runs[0]:
                look = {
                    "color": f"C{samplers.index(run.sampler)}",
                    "linestyle": styles[losses.index(run.loss) % len(styles)],
                }
                label = f"{run.sampler}, {run.loss}"
            steps, seconds, precision = zip(*run.curve, strict=True)
            axes[0].plot(seconds, precision, label=label, **look)
            axes[1].plot(steps, precision, **look)
        axes[0].set(xlabel="training time in seconds (log scale)", ylabel="precision at 1 on test data", xscale="log")
        axes[1].set(xlabel="steps")
        axes[0].figure.suptitle(title)
        axes[0].figure.legend(loc="outside lower center", ncols=4, fontsize="small")
