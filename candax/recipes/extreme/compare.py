"""`candax compare`: full softmax beside every pair of a sampler and a loss, on the same data in one run.

    candax compare                          (python-stdlib; 2 minutes on 2 cores, half of an epoch)
    candax compare --epochs 3 --seeds 3     (with the spread over three seeds)

What it should show: sampled losses reach the precision of the full softmax, or nearly, in a fraction of its time per
step (P@1 of .40 at 10 ms per step, .39 at 146), and the fraction falls as the classes grow in number. The oracle
`top_k` finds the hardest classes by scoring all of them, so it is as slow as the full softmax; its candidates have
count 1, so that corrections change nothing, and it is trained with the first of the losses only. Two rows need no
training: the most frequent labels, and those of the nearest training examples.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, ClassVar

from candax import data
from candax.recipes import common
from candax.recipes.common import comparing
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.extreme.baselines import best_shares, most_frequent, neighbour_shares
from candax.recipes.extreme.problem import PANELS
from candax.recipes.extreme.setting import MEASURED_AT, QUICK, Setting, notes_on


@dataclasses.dataclass(frozen=True)
class Compare(Setting):
    """Trains full softmax and sampler x loss pairs; prints a table, writes results.json and compare.png."""

    samplers: tuple[SamplerName, ...] = ("uniform", "log_uniform", "unigram", "top_k")
    """Samplers to compare."""
    losses: tuple[LossName, ...] = ("sampled_softmax", "css")
    """Losses to compare; the sampler top_k is trained with the first one only."""
    epochs: common.Positive = 0.5
    """Passes over the training set; the default is enough to show the order of the methods."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on; with several the table shows the lowest and the highest."""
    out: common.Out = Path("runs/compare")
    """Folder for results.json and compare.png."""
    curve_examples: common.Count = 500
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""
    LINEAR_RATE: ClassVar = 0.3
    QUICK: ClassVar = {**QUICK, "curve_examples": 200, "losses": ("sampled_softmax",)}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.samplers and self.losses), "one or more of both", "samplers", "losses")


@common.command
def compare(settings: Compare) -> common.Study:
    """Runs the comparison and writes its files."""
    dataset = settings.load()
    sizes = (
        f"{dataset.name}: {len(dataset.train):,} training and {len(dataset.test):,} test examples, "
        f"{dataset.num_features:,} features, {dataset.num_classes:,} classes"
    )
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes",
        [
            comparing.row({"method": "most frequent"}, most_frequent, dataset),
            comparing.row({"method": "nearest neighbours"}, lambda: best_shares(dataset, neighbour_shares(dataset))),
            *(method for seed in seeds for method in _trained(settings, dataset, seed)),
        ],
        (
            common.Column("sampler, loss", "method"),
            common.Column("P@1", "p_at_1", ".3f", spread=True),
            common.Column("P@5", "p_at_5", ".3f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("speed-up", "speedup", ".1f", common.over("ms_per_step")),
            common.Column("to 95 %", "seconds_to_95_percent", ".1f", common.reached("p_at_1", 0.95, "seconds")),
        ),
        PANELS,
        caption="to 95 %: seconds to 95 % of full softmax's P@1",
        picture="compare.png",
        may_change=("samplers", "losses", "seeds"),
        data=dataset.digest,
        notes=(*notes_on(dataset, tf_idf=settings.tf_idf), sizes),
    )


def _trained(settings: Compare, dataset: data.Dataset, seed: int) -> list[common.Method]:
    training = settings.training(dataset, seed=seed, curve_examples=settings.curve_examples)
    pairs: dict[str, Any] = {
        f"{sampler}, {loss}": settings.pair(sampler, loss)
        for sampler, loss in itertools.product(settings.samplers, settings.losses)
        if sampler != "top_k" or loss == settings.losses[0]
    }
    methods = {"full_softmax": (None, common.full_softmax_for(settings.batch_size, dataset.num_classes)), **pairs}
    return [
        common.Method({"method": name, "seed": seed}, training.by(sampler, loss, name, measured_at=MEASURED_AT))
        for name, (sampler, loss) in methods.items()
    ]
