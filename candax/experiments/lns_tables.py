"""Locality sensitive Negative Sampling, tables 2 and 3 and figure 4: precision, epochs and time of seven methods.

    python -m candax.experiments.lns_tables
    python -m candax.experiments.lns_tables --config yso-en --dataset FOLDER
    python -m candax.experiments.lns_tables --config amazon-670k --dataset FOLDER      (the paper's hyperparameters)

Full softmax, TopK (64 classes an example), LSH Embedding, LSH Label, frequency-based, sampled softmax (log-uniform) and
NCE, all but TopK with the same number of candidates; beside the paper's methods LSH near the largest logits instead of
the likest vectors, alone and with a sampled tail. Time is that of training steps and refreshes, relative to the faster
form of the full softmax in the same run.

The paper's claims: both LSH methods end at 93.8 % or more of full softmax's P@1, reach 90 % of it in about its number
of epochs, and take 6.5 to 22 times less time an epoch; static samplers stay behind.

Expected on python-stdlib (5 to 8 minutes on 2 cores): full softmax P@1 .408; top_k .413; LSH Embedding .375 and LSH
Label .354, below the paper's range; frequency-based .404, sampled softmax .406, NCE .403; near the logit .391, with a
tail .406; static samplers 8 to 10 times quicker an epoch, LSH 5 to 8. Labels are skewed here, and static samplers
that follow their frequency hard to beat.

On yso-en (flat frequencies; 25 to 40 minutes): full .283, LSH Label .228, frequency-based .229, with a tail .202,
sampled softmax .197, LSH Embedding .196, NCE .191, top_k .016. On acl-authors (an hour): full .099, frequency-based
.096, NCE .088, with a tail .086, sampled softmax .084, LSH Label .083, near the logit .071, LSH Embedding .070, top_k
.014.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import data
from candax.experiments import setup
from candax.experiments.contest import Run, reaching, train_and_measure
from candax.experiments.lns_configurations import CONFIGURATIONS, Configuration, Name, load
from candax.experiments.lns_methods import METHODS, MethodName
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class Tables:
    """Trains by every method; prints a table, writes results.json and figure4.png."""

    config: Name = "python-stdlib"
    """Data set and hyperparameters."""
    dataset: str | None = None
    """Folder with the files of the data set; python-stdlib needs none."""
    methods: tuple[MethodName, ...] = tuple(METHODS)
    """Methods beside full softmax."""
    epochs: float | None = None
    """Passes over the training set; by default those of the configuration."""
    curve_examples: int = 5000
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""
    seed: int = 0
    """Of initial values, batches and candidates."""
    out: setup.Out = Path("runs/lns_tables")
    """Folder for results.json and figure4.png."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One method: epochs are None where a precision is never reached; ``curve`` has (epoch, seconds, P@1)."""

    method: str
    epochs_to_50_percent: float | None
    epochs_to_90_percent: float | None
    p_at_1: float
    p_at_5: float
    seconds_an_epoch: float
    time_relative_to_full: float
    curve: list[tuple[float, float, float]]


def tables(settings: Tables) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows of the table, full softmax first."""
    configuration = CONFIGURATIONS[settings.config]
    dataset = load(settings.config, settings.dataset)
    return contest(configuration, dataset, settings)


def contest(configuration: Configuration, dataset: data.Dataset, settings: Tables) -> list[Row]:
    """The same on a data set given."""
    common = configuration.settings(dataset.name, dataset.num_classes, settings.epochs, settings.seed)
    setup.check(common)
    if settings.curve_examples < 1:
        raise ValueError(f"expected --curve-examples of 1 or more, got {settings.curve_examples}.")
    out = setup.writable_folder(settings.out)
    batches = setup.make_batches(common, dataset)
    steps = setup.num_steps(common, batches, default_epochs=configuration.epochs)
    about = f"{dataset.name}: {dataset.num_classes:,} classes, {common.num_sampled:,} candidates"
    Console().print(f"{about}; {batches.describe()}; {steps:,} steps")
    full: Run | None = None
    rows: list[Row] = []
    for method in (None, *settings.methods):
        sampler: Any = None
        if method is None:
            loss = setup.faster_full_softmax(common, dataset, batches)
        else:
            sampler, loss = METHODS[method](configuration, common.num_sampled)
        name = "full_softmax" if method is None else method
        run = train_and_measure(
            common, dataset, batches, steps, name, "", sampler, loss, curve_examples=settings.curve_examples
        )
        full = full or run
        rows.append(_row(run, full, batches.batches_per_epoch))
        # After every method: a long run that is cut off leaves what it has.
        write_atomically(
            out / "results.json",
            json.dumps({"data": about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n",
        )
    Console().print(_table(about, rows))
    draw(rows, about, out / "figure4.png")
    return rows


def _row(run: Run, full: Run, batches_per_epoch: int) -> Row:
    final = full.curve[-1][2]
    half, most = (reaching(run.curve, share * final) for share in (0.5, 0.9))
    return Row(
        method=run.sampler,
        epochs_to_50_percent=None if half is None else half[0] / batches_per_epoch,
        epochs_to_90_percent=None if most is None else most[0] / batches_per_epoch,
        p_at_1=run.final["p_at_1"],
        p_at_5=run.final["p_at_5"],
        seconds_an_epoch=run.seconds_per_step * batches_per_epoch,
        time_relative_to_full=full.seconds_per_step / max(run.seconds_per_step, 1e-9),
        curve=[(step / batches_per_epoch, seconds, precision) for step, seconds, precision in run.curve],
    )


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(
        title=title, box=SIMPLE, padding=(0, 1, 0, 0), caption="epochs to 50 and 90 % of full softmax's last P@1"
    )
    table.add_column("method", no_wrap=True)
    for column in ("to 50 %", "to 90 %", "P@1", "of full", "P@5", "s/epoch", "faster"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        reached = ("never" if x is None else f"{x:.2f}" for x in (row.epochs_to_50_percent, row.epochs_to_90_percent))
        table.add_row(
            row.method,
            *reached,
            f"{row.p_at_1:.3f}",
            f"{row.p_at_1 / max(rows[0].p_at_1, 1e-12):.3f}",
            f"{row.p_at_5:.3f}",
            f"{row.seconds_an_epoch:.1f}",
            f"{row.time_relative_to_full:.1f}",
        )
    return table


def draw(rows: list[Row], title: str, path: Path) -> None:
    """P@1 against time and against epochs."""
    with save_picture(path, columns=2, size=(13, 5.5), share_y=True) as axes:
        for row in rows:
            epochs, seconds, precision = zip(*row.curve, strict=True)
            look: dict[str, Any] = {}
            if row is rows[0]:
                look = {"color": "black", "linewidth": 2.5}
            elif row.method.startswith("lsh"):
                look = {"linewidth": 2}
            else:
                look = {"linestyle": "--"}
            axes[0].plot(seconds, precision, label=row.method, **look)
            axes[1].plot(epochs, precision, **look)
        axes[0].set(xlabel="training time in seconds (log scale)", ylabel="precision at 1 on test data", xscale="log")
        axes[1].set(xlabel="epochs")
        axes[0].figure.suptitle(
            f"{title}\npaper: LSH follows full softmax epoch by epoch at a fraction of its time, static samplers lag"
        )
        axes[0].figure.legend(loc="outside lower center", ncols=5, fontsize="small")


if __name__ == "__main__":
    tables(tyro.cli(Tables))
