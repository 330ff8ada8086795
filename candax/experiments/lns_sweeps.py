"""Locality sensitive Negative Sampling, tables 4 to 7: what the number of candidates, of tables and of hashes does.

    python -m candax.experiments.lns_sweeps
    python -m candax.experiments.lns_sweeps --config acl-authors --dataset FOLDER

Table 4: candidates as a share of all classes, .005 and .05, for LSH Embedding, LSH Label and sampled softmax
(log-uniform), and for sampled softmax also .2. Tables 5 and 6: number of tables L. Table 7: number of hash functions K
a table. One setting changes at a time, the others are those of the configuration. Every run is trained alike.

The paper's claims: LSH works with .005 of the classes where sampled softmax fails, which needs .2 (table 4); quality
grows with L and saturates, and time grows in proportion to L (tables 5 and 6); there is a best K (table 7).

Expected P@1 on python-stdlib (10 to 20 minutes on 2 cores; full softmax .408):

* Candidates, .005 and .05 of all classes: LSH Embedding .027, .350; LSH Label .165, .337; near the logit .350, .380;
  sampled softmax .388, .409, and .415 with .2. It does not need many here, as labels are skewed.
* Tables, 4 to 64: LSH Embedding .294, .354, .375, .366, .347; near the logit .352, .366, .391, .388, .396.
* Hash functions, 4 to 10: LSH Embedding .310, .297, .375, .342; near the logit .344 and .377 with 4 and 6.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), appendix C.
"""

import dataclasses
import json
from pathlib import Path
from typing import Literal

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.experiments import setup
from candax.experiments.contest import train_and_measure
from candax.experiments.lns_configurations import CONFIGURATIONS, Configuration, Name, load
from candax.experiments.lns_methods import METHODS, MethodName
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically

TableName = Literal["sparsity", "num_tables", "num_hashes"]


@dataclasses.dataclass(frozen=True)
class Sweeps:
    """Trains with one setting after another; prints a table for each, writes results.json and sweeps.png."""

    config: Name = "python-stdlib"
    """Data set and hyperparameters."""
    dataset: str | None = None
    """Folder with the files of the data set; python-stdlib needs none."""
    tables: tuple[TableName, ...] = ("sparsity", "num_tables", "num_hashes")
    """What to sweep: tables 4, 5 and 6, 7."""
    methods: tuple[MethodName, ...] = ("lsh_embedding", "lsh_label", "lsh_logit")
    """LSH methods of table 4; the first and the last one are those of the other tables."""
    sparsity: tuple[float, ...] = (0.005, 0.05)
    """Candidates as a share of all classes."""
    static_sparsity: tuple[float, ...] = (0.005, 0.05, 0.2)
    """The same for sampled softmax."""
    num_tables: tuple[int, ...] = (4, 8, 16, 32, 64)
    """L."""
    num_hashes: tuple[int, ...] = (4, 6, 8, 10)
    """K."""
    epochs: float | None = None
    """Passes over the training set; by default those of the configuration."""
    seed: int = 0
    """Of initial values, batches and candidates."""
    out: setup.Out = Path("runs/lns_sweeps")
    """Folder for results.json and sweeps.png."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One trained model: ``value`` is that of the swept setting."""

    sweep: str
    method: str
    value: float
    num_sampled: int
    p_at_1: float
    p_at_5: float
    ms_per_step: float


def sweeps(settings: Sweeps) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows."""
    base = CONFIGURATIONS[settings.config]
    plans = _plans(settings, base)
    dataset = load(settings.config, settings.dataset)
    out = setup.writable_folder(settings.out)
    about = f"{dataset.name}: {dataset.num_classes:,} classes"
    rows = []
    for sweep, method, value, configuration in plans:
        common = configuration.settings(dataset.name, dataset.num_classes, settings.epochs, settings.seed)
        setup.check(common)
        batches = setup.make_batches(common, dataset)
        run = train_and_measure(
            common,
            dataset,
            batches,
            setup.num_steps(common, batches, default_epochs=configuration.epochs),
            f"{method}, {sweep} {value:g}",
            "",
            *METHODS[method](configuration, common.num_sampled),
            curve_examples=1,
        )
        rows.append(
            Row(
                sweep,
                method,
                value,
                common.num_sampled,
                run.final["p_at_1"],
                run.final["p_at_5"],
                1e3 * run.seconds_per_step,
            )
        )
        # After every model: a long run that is cut off leaves what it has.
        write_atomically(
            out / "results.json",
            json.dumps({"data": about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n",
        )
    Console().print(_table(about, rows))
    _draw(rows, about, out / "sweeps.png")
    return rows


def _plans(settings: Sweeps, base: Configuration) -> list[tuple[TableName, MethodName, float, Configuration]]:
    plans: list[tuple[TableName, MethodName, float, Configuration]] = []
    if "sparsity" in settings.tables:
        shares = [(method, share) for method in settings.methods for share in settings.sparsity]
        shares += [("sampled_softmax", share) for share in settings.static_sparsity]
        for method, share in shares:
            if not 0 < share <= 1:
                raise ValueError(f"expected shares of all classes above 0 and at most 1, got {share}.")
            plans.append(("sparsity", method, share, dataclasses.replace(base, sparsity=share)))
    for method in dict.fromkeys((settings.methods[0], settings.methods[-1])):
        if "num_tables" in settings.tables:
            plans += [("num_tables", method, n, dataclasses.replace(base, num_tables=n)) for n in settings.num_tables]
        if "num_hashes" in settings.tables:
            plans += [("num_hashes", method, n, dataclasses.replace(base, num_hashes=n)) for n in settings.num_hashes]
    return plans


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("sweep", "method"):
        table.add_column(column, no_wrap=True)
    for column in ("value", "candidates", "P@1", "P@5", "ms/step"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.sweep,
            row.method,
            f"{row.value:g}",
            f"{row.num_sampled:,}",
            f"{row.p_at_1:.3f}",
            f"{row.p_at_5:.3f}",
            f"{row.ms_per_step:.1f}",
        )
    return table


def _draw(rows: list[Row], title: str, path: Path) -> None:
    labels = {
        "sparsity": ("candidates / classes", "paper: LSH needs few, sampled softmax many"),
        "num_tables": ("tables L", "paper: grows with L and saturates"),
        "num_hashes": ("hash functions K a table", "paper: there is a best K"),
    }
    sweeps = list(dict.fromkeys(row.sweep for row in rows))
    with save_picture(path, columns=len(sweeps), size=(5 * len(sweeps), 5), share_y=True) as axes:
        for axis, sweep in zip(axes, sweeps, strict=True):
            for method in dict.fromkeys(row.method for row in rows if row.sweep == sweep):
                points = [(row.value, row.p_at_1) for row in rows if (row.sweep, row.method) == (sweep, method)]
                axis.plot(*zip(*points, strict=True), marker="o", label=method)
            axis.set(xlabel=labels[sweep][0], title=labels[sweep][1])
            if sweep != "num_hashes":
                axis.set_xscale("log")
            axis.legend(fontsize="small")
        axes[0].set(ylabel="precision at 1 on test data")
        axes[0].figure.suptitle(title)


if __name__ == "__main__":
    sweeps(tyro.cli(Sweeps))
