"""Locality sensitive Negative Sampling, figure 5: data whose label distribution was flattened, where statics fail.

    python -m candax.experiments.lns_figure5
    python -m candax.experiments.lns_figure5 --config yso-en --dataset FOLDER --max-count 10 --epochs 5

Frequent classes are down-sampled until all that are left have between half of ``--max-count`` and ``--max-count``
training examples (``candax.data.flatten_labels``); then every method of ``lns_tables`` is trained on what is left, and
the label frequencies before and after are drawn beside its curves. Hyperparameters are those of the data set before.

Expected on yso-en as above (20,492 classes, 1,639 candidates; 40 minutes on 2 busy cores): full softmax P@1 .134, LSH
Label .131 (98 %), frequency-based .135 (100 %), LSH Embedding .110 (82 %), LSH near the logit .107, sampled softmax
.098 (73 %), NCE .073 (55 %), top_k .062, LSH with a log-uniform tail .020: log-uniform draws, which count on frequent
classes, fail; frequency-based ones are nearly uniform here, and do not. On acl-authors with --max-count 10 (9,084
classes, 182 candidates): full softmax .063, frequency-based .039, LSH Label .037, LSH Embedding .032, top_k .027, LSH
near the logit .015, sampled softmax and NCE .007. On python-stdlib (3 minutes; only 367 classes and 15 candidates are
left, so this says little): full softmax .142, top_k .147, frequency-based .036, LSH Embedding and Label .032, NCE .020,
sampled softmax .016.

The paper's claims: static samplers, which count on a few frequent classes, fail; LSH does not care.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.5 and
figure 5.
"""

import dataclasses
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console

from candax import data
from candax.experiments import setup
from candax.experiments.lns_configurations import CONFIGURATIONS, load
from candax.experiments.lns_tables import Row, Tables, contest
from candax.pictures import save_picture


@dataclasses.dataclass(frozen=True)
class Figure5(Tables):
    """Flattens a data set and trains by every method; writes results.json, figure4.png and frequencies.png."""

    max_count: int = 40
    """The most training examples of a class that are left."""
    min_count: int | None = None
    """The fewest; by default half as many."""
    epochs: float | None = 10
    """Passes over the training set, which is much smaller than before."""
    out: setup.Out = Path("runs/lns_figure5")
    """Folder for results.json, figure4.png and frequencies.png."""


def figure5(settings: Figure5) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows of the table, full softmax first."""
    before = load(settings.config, settings.dataset)
    after = data.flatten_labels(before, max_count=settings.max_count, min_count=settings.min_count, seed=settings.seed)
    out = setup.writable_folder(settings.out)
    distances = [data.distance_from_uniform(part.label_counts(part.train)) for part in (before, after)]
    Console().print(
        f"label distribution, distance from uniform: {distances[0]:.3f} before, {distances[1]:.3f} after; "
        f"{before.num_classes:,} classes and {len(before.train):,} training examples before, "
        f"{after.num_classes:,} and {len(after.train):,} after"
    )
    _draw((before, after), distances, out / "frequencies.png")
    return contest(CONFIGURATIONS[settings.config], after, settings)


def _draw(datasets: tuple[data.Dataset, data.Dataset], distances: list[float], path: Path) -> None:
    with save_picture(path, columns=2, size=(11, 4.5), share_y=True) as axes:
        for axis, dataset, distance in zip(axes, datasets, distances, strict=True):
            counts = np.sort(dataset.label_counts(dataset.train))[::-1]
            axis.plot(np.arange(1, len(counts) + 1), np.maximum(counts, 0.5))
            axis.set(
                xlabel="classes, the most frequent first",
                title=f"{dataset.name}: {distance:.2f} from uniform",
                xscale="log",
                yscale="log",
            )
        axes[0].set(ylabel="training examples")


if __name__ == "__main__":
    figure5(tyro.cli(Figure5))
