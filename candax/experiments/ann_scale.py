r"""ANN Softmax, table 6: accuracy by method as the number of classes grows.

    candax experiment ann-scale
    candax experiment ann-scale --min-classes 100000 --max-classes 100000 \
        --warm-start 1000 --max-steps 800 --learning-rate 3e-3
    candax experiment ann-scale --min-classes 1000000 --max-classes 1000000 --rate 0.01 \
        --warm-start 1000 --max-steps 200 --learning-rate 3e-3

Generated identities, 10^3, 10^4, ... of them up to ``--max-classes``; top-1 accuracy on new samples of the training
classes, with the softmax of scaled cosines and a tenth of the classes as candidates, as mean and range over seeds,
which change the identities, initial values, batches and candidates. From 10^6 classes on, where a step of the full
softmax takes gigabytes and a graph of neighbours takes time by the square of the classes, only the other methods are
run. Where there is no time for an epoch, ``--warm-start`` trains the encoder on some identities beforehand. KNN
Softmax's graph is built at the start and then once per epoch: in the first epoch it is that of the initial class
vectors.

The paper's claims: ANN and KNN Softmax stay with the full softmax at any size; Partial FC, which draws at random, falls
behind by .3 % at 10^3 classes, 1.3 % at 10^6, 4.3 % at 10^7, 8.2 % at 10^8, LSH Softmax somewhat less.

Expected with the paper's codes, means of three seeds (ranges: docs/papers/ann.md), top-1 of all classes, ANN, KNN and
Partial FC: with --codes mean --epochs 1 --min-steps 800 (5 minutes on 2 cores) .989, .983, .973, .954 with 1,000
classes and .840, .857, .825, .588 with 10,000; by the second command (an hour on busy cores) from .784 to .817, .815,
.822, .829; by the third (40 minutes) from .563 to .589 with ANN and .585 with Partial FC. What an epoch and more of
10^6 classes would show was not run.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), table 6.
"""

import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any, ClassVar

import tyro

from candax import losses
from candax.experiments import ann_methods
from candax.experiments.ann_methods import LOSSES, Coded, MethodName
from candax.recipes import common
from candax.recipes.faces import Faces, Problem, make_pretrained

# Methods whose step or build looks at all classes, and the number of classes from which on they are left out.
_TOO_MANY = {"full_softmax": 10**6, "knn_softmax": 10**6}
_START = "start"


@dataclasses.dataclass(frozen=True)
class ANNScale(Coded, Faces):
    """Trains every method at every number of classes; prints a table, writes results.json and a picture."""

    methods: tuple[MethodName, ...] = ("full_softmax", "ann_softmax", "knn_softmax", "partial_fc")
    """Methods to compare."""
    num_classes: tyro.conf.Suppress[int] = 10_000
    min_classes: common.Count = 1000
    """The smallest number of classes."""
    max_classes: common.Count = 10_000
    """The most classes; each number of classes is ten times the one before."""
    seeds: common.Count = 3
    """Trainings of each method and number of classes, with seeds from --seed on."""
    epochs: common.Positive = 3
    """Passes over the samples."""
    min_steps: common.Count = 1500
    """The fewest training steps, for few classes."""
    max_steps: common.Count | None = None
    """The most training steps, for many classes; None: no limit."""
    warm_start: common.NonNegative = 0
    """Identities that the encoder is trained on beforehand; class vectors then start as means of embeddings, and a row
    "start" says how accurate these are. 0: everything starts at random."""
    warm_steps: common.Count = 1500
    """Training steps of --warm-start, with the learning rate --warm-learning-rate."""
    warm_learning_rate: common.Positive = 1e-2
    """Learning rate of the training of --warm-start."""

    QUICK: ClassVar = {
        **Faces.QUICK,
        **{"methods": ("partial_fc",), "min_classes": 6, "max_classes": 60, "seeds": 2, "min_steps": 3, "max_steps": 4},
    }

    def check(self) -> None:
        """See ``Settings``; sizes must grow, and the warm start needs a batch of samples."""
        super().check()
        grow = self.min_classes <= self.max_classes
        self.expect(bool(self.methods or self.warm_start), "one method or more, or --warm-start", "methods")
        self.expect(grow, "--min-classes <= --max-classes", "min_classes", "max_classes")
        some = self.warm_start or any(self.min_classes < _TOO_MANY.get(name, math.inf) for name in self.methods)
        self.expect(bool(some), "a method that does not look at all of so many classes", "methods", "min_classes")
        few = self.warm_start * self.samples_per_class
        enough = f"--warm-start 0 or so many identities that they have a batch of {self.batch_size} samples"
        self.expect(not 0 < few < self.batch_size, enough, "warm_start", "samples_per_class")

    def at(self, num_classes: int, seed: int) -> "ANNScale":
        """These settings at one number of classes, with one seed."""
        own = dataclasses.replace(self, num_classes=num_classes, seed=seed)
        steps = max(round(self.epochs * own.batches_per_epoch), self.min_steps)
        steps = steps if self.max_steps is None else min(steps, self.max_steps)
        return dataclasses.replace(own, epochs=steps / own.batches_per_epoch)


COLUMNS = (
    *common.columns(num_classes=",", steps=",.0f", method=""),
    common.Column("top-1", "top_1", ".4f", spread=True),
    common.Column("gap", "gap", ".4f", common.below("top_1", same=("num_classes",))),
    *common.columns(ms_per_step=".1f"),
)
AXES = {"xlabel": "classes", "xscale": "log"}
PANELS = (
    common.Panel(common.sweep("num_classes", "top_1"), {**AXES, "ylabel": "top-1 (mean and range over seeds)"}),
    common.Panel(
        common.sweep("num_classes", "ms_per_step", where=lambda row: row["method"] != _START),
        {**AXES, "yscale": "log", "ylabel": "ms per step, encoder included"},
    ),
)


@common.command
def ann_scale(settings: ANNScale) -> common.Study:
    """Runs the study; a row for each method at each number of classes."""
    before = f", encoder trained on {settings.warm_start:,} identities before" if settings.warm_start else ""
    tens = (settings.min_classes * 10**power for power in itertools.count())
    sizes = itertools.takewhile(lambda number: number <= settings.max_classes, tens)
    start = (_START,) if settings.warm_start else ()
    return common.Study(
        f"top-1 of new samples, {settings.seeds} seeds, candidates: {settings.rate:g} of the classes{before}",
        [
            common.Method(
                {"num_classes": number, "method": name, "seed": seed},
                functools.partial(_run, settings.at(number, seed), name),
            )
            for number, seed in itertools.product(sizes, range(settings.seed, settings.seed + settings.seeds))
            for name in (*start, *settings.methods)
            if number < _TOO_MANY.get(name, math.inf)
        ],
        COLUMNS,
        PANELS,
        "paper: random candidates fall behind as classes grow, retrieved ones do not",
        "gap: how far it is below the full softmax",
    )


def _run(settings: ANNScale, name: Any, folder: Path | None) -> dict[str, Any]:
    problem, start = _problem(settings)
    training, loss = problem.training(start=start, measure=problem.top_1), LOSSES["softmax"]
    if name == _START:
        model, _ = training.make(None, losses.over_all_classes(loss))
        return {"steps": 0, "ms_per_step": 0.0, **problem.top_1(model)}
    by = ann_methods.method(name, ann_methods.sizes_of(settings, settings.codes), loss)
    return training.by(*by, f"{settings.num_classes:,} classes, {name}, seed {settings.seed}")(folder)


@functools.lru_cache(maxsize=1)
def _problem(settings: ANNScale) -> tuple[Problem, Any]:
    """What the methods of one size and seed share: the data, and the model to start from."""
    problem = ann_methods.classification(settings)
    if not settings.warm_start:
        return problem, None
    of_few: dict[str, Any] = {"num_classes": settings.warm_start, "num_steps": settings.warm_steps}
    of_few["learning_rate"] = settings.warm_learning_rate
    return problem, make_pretrained(problem, losses.over_all_classes(LOSSES["softmax"]), **of_few)
