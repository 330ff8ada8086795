"""ANN Softmax, the methods of table 3 on real data: precision of the classification itself.

    python -m candax.experiments.ann_dataset
    python -m candax.experiments.ann_dataset --config acl-authors --dataset FOLDER

Data sets, batches and learning rates are those of the LNS experiments (``lns_configurations``), the head is theirs too:
logits with biases, no cosines, so that what retrieval holds are class vectors extended by bias and length. Candidates
are a tenth of the classes; time is that of training steps and builds, relative to the faster form of the full softmax.

The paper's claims: ANN and KNN Softmax are as precise as the full softmax, LSH Softmax and Partial FC are not. Its
classes are equally frequent, those here are not.

Expected on python-stdlib without hf_softmax (10 minutes on 2 busy cores), P@1 and time relative to the full softmax:
full .408, Partial FC .383 (.20), ANN .379 (.61), KNN .379 (.36), LSH .378 (.36). On acl-authors with --rate 0.02
--epochs 4 --methods ann_softmax partial_fc (20 minutes): full .072, ANN .072 (.37), Partial FC .063 (.05).

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.3.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import losses
from candax.experiments import ann_methods, setup
from candax.experiments.ann_methods import MethodName, Sizes
from candax.experiments.contest import Run, train_and_measure
from candax.experiments.lns_configurations import CONFIGURATIONS, Name, load
from candax.pictures import save_picture
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class ANNDataset:
    """Trains by every method on a data set; prints a table, writes results.json and dataset.png."""

    config: Name = "python-stdlib"
    """Data set and hyperparameters."""
    dataset: str | None = None
    """Folder with the files of the data set; python-stdlib needs none."""
    methods: tuple[MethodName, ...] = ann_methods.METHODS[1:]
    """Methods beside full softmax."""
    rate: float = 0.1
    """Candidates of a group as a share of all classes: the paper's r."""
    num_groups: int = 4
    """Groups of examples that share candidates: the paper's g."""
    epochs: float | None = None
    """Passes over the training set; by default those of the configuration."""
    curve_examples: int = 5000
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""
    seed: int = 0
    """Of initial values, batches and candidates."""
    out: setup.Out = Path("runs/ann_dataset")
    """Folder for results.json and dataset.png."""


def ann_dataset(settings: ANNDataset) -> list[Run]:
    """Runs the experiment and writes its files; returns what was trained, full softmax first."""
    configuration = CONFIGURATIONS[settings.config]
    if not 0 < settings.rate <= 1 or settings.num_groups < 1 or settings.curve_examples < 1:
        raise ValueError(
            "expected --rate above 0 and at most 1, --num-groups and --curve-examples of 1 or more, got "
            f"{settings.rate}, {settings.num_groups} and {settings.curve_examples}."
        )
    dataset = load(settings.config, settings.dataset)
    common = configuration.settings(dataset.name, dataset.num_classes, settings.epochs, settings.seed)
    setup.check(common)
    out = setup.writable_folder(settings.out)
    batches = setup.make_batches(common, dataset)
    steps = setup.num_steps(common, batches, default_epochs=configuration.epochs)
    sizes = Sizes(
        num_classes=dataset.num_classes,
        batch_size=common.batch_size,
        num_sampled=max(1, round(settings.rate * dataset.num_classes)),
        num_groups=settings.num_groups,
        period=max(1, batches.batches_per_epoch // 5),
        graph_period=batches.batches_per_epoch,
        near="logit",
    )
    about = (
        f"{dataset.name}: {dataset.num_classes:,} classes, {sizes.num_sampled:,} candidates a group, {steps:,} steps"
    )
    Console().print(about)
    runs: list[Run] = []
    for name in ("full_softmax", *settings.methods):
        sampler: Any = None
        if name == "full_softmax":
            loss = setup.faster_full_softmax(common, dataset, batches)
        else:
            sampler, loss = ann_methods.method(name, sizes, losses.subset_softmax)
        runs.append(
            train_and_measure(
                common, dataset, batches, steps, name, "", sampler, loss, curve_examples=settings.curve_examples
            )
        )
        # After every method: a long run that is cut off leaves what it has.
        write_atomically(
            out / "results.json",
            json.dumps({"data": about, "runs": [dataclasses.asdict(run) for run in runs]}, indent=1) + "\n",
        )
    Console().print(_table(about, runs))
    _draw(runs, about, out / "dataset.png")
    return runs


def _table(title: str, runs: list[Run]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("P@1", "of full", "P@5", "ms/step", "time"):
        table.add_column(column, justify="right", no_wrap=True)
    for run in runs:
        table.add_row(
            run.sampler,
            f"{run.final['p_at_1']:.3f}",
            f"{run.final['p_at_1'] / max(runs[0].final['p_at_1'], 1e-12):.3f}",
            f"{run.final['p_at_5']:.3f}",
            f"{1e3 * run.seconds_per_step:.1f}",
            f"{run.seconds_per_step / runs[0].seconds_per_step:.2f}",
        )
    return table


def _draw(runs: list[Run], title: str, path: Path) -> None:
    """P@1 against time and against steps."""
    with save_picture(path, columns=2, size=(12, 5), share_y=True) as axes:
        for run in runs:
            steps, seconds, precision = zip(*run.curve, strict=True)
            look = {"color": "black", "linewidth": 2.5} if run is runs[0] else {}
            axes[0].plot(seconds, precision, label=run.sampler, **look)
            axes[1].plot(steps, precision, **look)
        axes[0].set(xlabel="training time in seconds (log scale)", ylabel="precision at 1 on test data", xscale="log")
        axes[1].set(xlabel="steps")
        axes[0].figure.suptitle(f"{title}\npaper: ANN and KNN Softmax are as precise as the full softmax")
        axes[0].legend(fontsize="small")


if __name__ == "__main__":
    ann_dataset(tyro.cli(ANNDataset))
