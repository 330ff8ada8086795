"""`candax train` and `candax evaluate`: the strong model, beside what needs no training, with checkpoints.

    candax train                                       (python-stdlib)
    candax train --dataset acl-authors --tf-idf        (a folder in the Extreme Classification Repository's format)
    candax train --seeds 3 --average 3

Expected on python-stdlib by the third command, P@1 / P@5: most frequent labels .284 / .118, nearest neighbours .425 /
.214, the model .443 / .239, the mean of three .449 / .240, with neighbours .452 / .247 (19 s per training on two
cores, 3.3 GB for one model; napkinXC's label tree beside it in ``benchmarks/extreme.py``). On acl-authors, --tf-idf
--seeds 3 --average 3: one model .195 / .105, the mean of three .204 / .112, with neighbours .216 / .120, 391 s per
training on one core, 2.7 GB before programs kept memory. On yso-en .368 / .170, the mean of three .379 / .176, with
neighbours .384 / .180, 594 s per training on two cores, 4.8 GB.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import tyro
from rich.console import Console
from scipy.sparse import csr_array

import candax as cx
from candax import data, losses
from candax.base import Sampler
from candax.models import Classifier
from candax.recipes import common
from candax.recipes.common import comparing, finished
from candax.recipes.common.catalog import DISTINCT, LOSSES, LossName, SamplerName
from candax.recipes.common.options import saved_settings
from candax.recipes.common.results import write_json
from candax.recipes.common.study import kept_in
from candax.recipes.common.training import begun, check_begun
from candax.recipes.extreme.baselines import (
    best_power,
    best_shares,
    measure_mixture,
    most_frequent,
    neighbour_shares,
)
from candax.recipes.extreme.embedding import measured
from candax.recipes.extreme.problem import CURVE_EXAMPLES
from candax.recipes.extreme.saving import save_run
from candax.recipes.extreme.setting import MEASURED_AT, QUICK, STDLIB, Setting, notes_on, without_validation
from candax.training import Checkpoints, Validation, fit
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class Train(Setting):
    """Trains one model and writes checkpoints and metrics; run again with the same settings, it goes on."""

    sampler: SamplerName | None = "log_uniform"
    """Sampler of the candidates; None trains with the full softmax."""
    loss: LossName = "one_vs_all"
    """Loss on the candidates."""
    dim: common.Count = 512
    """Coordinates of embeddings and class vectors; 768 for python-stdlib, whose own settings replace these defaults."""
    epochs: common.Positive = 6.0
    """Passes over the training set; 4 for python-stdlib."""
    batch_size: common.Count = 128
    """Examples per step; 256 for python-stdlib."""
    num_sampled: common.Count = 2048
    """Candidates that a batch shares: distinct ones, and all classes where there are no more; 1024 for
    python-stdlib."""
    split: Literal["validation", "test"] = "test"
    """What is measured on: the test set, or, to choose settings, a tenth of the training set that is left out."""
    seeds: common.Count = 1
    """Number of trainings, with seeds from --seed on; each after the first has a folder of its own."""
    average: common.NonNegative = 1
    """Adds rows that rank by the mean of the probabilities of this many models, alone and with neighbours."""
    neighbours: common.NotNegative = 0.3
    """The weight that the labels' shares among the nearest neighbours have in the last row; the power of the cosine is
    chosen on a tenth of the training set."""
    out: common.Out = Path("runs/train")
    """Folder of the run: config.json, metrics.jsonl, checkpoints/, model.safetensors, results.json, train.png."""
    checkpoint_every: common.Count = 500
    """Steps between checkpoints."""
    keep: common.Count = 3
    """Checkpoints kept."""
    QUICK: ClassVar = QUICK
    LINEAR_RATE: ClassVar = 0.1
    # Chosen with whole files held out: what the encoder learns beyond its start holds for other files less.
    OF_STDLIB: ClassVar = {
        "encoder_rate": 0.03, "dropout": 0.3, "learning_rate": 0.2, "dim": 768, "epochs": 4.0, "batch_size": 256,
        "num_sampled": 1024,
    }  # fmt: skip
    UNLESS_GIVEN: ClassVar = (OF_STDLIB,)

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        used = self.sampler is not None or self.loss == type(self).loss
        self.expect(used, "a sampler for the loss (None trains with the full softmax)", "loss", "sampler")

    def load(self) -> data.Dataset:
        """The data set, its test examples those that are measured on."""
        dataset = super().load()
        if self.split == "test":
            return dataset
        held_out = without_validation(dataset)
        self.check_sizes(held_out)
        return held_out

    def usual(self) -> dict[str, Any]:
        """See ``Settings``; with python-stdlib's own values where it is trained on."""
        of_stdlib = self.dataset == STDLIB and self.encoder == "linear"
        return (self.OF_STDLIB if of_stdlib else {}) | super().usual()

    def pair_of(self, num_classes: int) -> tuple[Sampler | None, Any]:
        """Sampler and loss. Candidates are distinct; they are all classes where there are no more than would be drawn.

        Sampling without replacement leaves less noise in the estimate of ``one_vs_all`` at the same cost. Without a
        sampler the loss is the full softmax.
        """
        if self.sampler is None:
            return None, common.full_softmax_for(self.batch_size, num_classes)
        sampler, loss = self.pair(self.sampler, self.loss)
        if self.sampler not in DISTINCT:
            return sampler, loss
        if num_classes <= self.num_sampled:
            return None, losses.over_all_classes(loss)
        return DISTINCT[self.sampler](self.num_sampled), loss

    def of_seed(self, number: int) -> "Train":
        """The settings of one of several runs."""
        out = self.out / f"seed-{self.seed + number}" if number else self.out
        return dataclasses.replace(self, seed=self.seed + number, out=out)


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measures the newest checkpoint of a run on its test examples; prints JSON and writes evaluation.json."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of `candax train`."""


# Changing these does not change what a run computes, so a run may go on under other values of them.
# Of the data their digest decides, which batches have: a folder may move, or be given by another path.
_NO_PART_OF_IDENTITY = (
    "quick", "dataset", "out", "checkpoint_every", "keep", "epochs", "steps", "seeds", "average", "neighbours",
)  # fmt: skip


class Run(NamedTuple):
    """A run of `candax train`: model and optimizer at its start, or from its newest checkpoint."""

    settings: Train
    dataset: data.Dataset
    training: common.Training
    model: Classifier
    optimizer: cx.Optimizer

    def measure(self) -> dict[str, float]:
        """What ``candax.training.evaluate`` says of the model, and the step."""
        return {"step": int(self.optimizer.step[...]), **measured(self.model, self.dataset)}


def identity_of(settings: Train, num_steps: int) -> dict[str, Any]:
    """What all parts of a run share."""
    values = dataclasses.asdict(settings)
    kept = {name: value for name, value in values.items() if name not in _NO_PART_OF_IDENTITY}
    # With the linear encoder the rate falls to 0 at the last step.
    return kept if settings.encoder == "relu" else {**kept, "num_steps": num_steps}


@common.command
def train(settings: Train) -> common.Study:
    """Trains, or goes on with, a run for each seed; measures them beside baselines."""
    dataset = settings.load()
    for number in range(max(settings.seeds, settings.average)):
        of = settings.of_seed(number)
        check_begun(of.out, functools.partial(_identity, of, dataset))
    shares = functools.cache(lambda: neighbour_shares(dataset, power=best_power(without_validation(dataset))))
    name = "full softmax" if settings.sampler is None else f"{settings.sampler}, {settings.loss}"
    each = [settings.of_seed(number) for number in range(settings.seeds)]
    some = [settings.of_seed(number) for number in range(settings.average)]
    mean = name if settings.average == 1 else f"mean of {settings.average}"
    means = {mean: 0.0} if settings.average > 1 else {}
    if settings.average and settings.neighbours:
        means[f"{mean} and neighbours"] = settings.neighbours
    averaged: dict[Train, Classifier] = {}
    row = comparing.row  # runs have folders of their own, which stay
    methods = [
        row({"method": "most frequent"}, most_frequent, dataset),
        row({"method": "nearest neighbours"}, lambda: best_shares(dataset, shares())),
    ]
    for of in each:
        kept = averaged if means and of in some else None
        methods.append(row({"method": name, "seed": of.seed}, _trained, settings.out, of, dataset, kept))
    for label, weight in means.items():
        methods.append(row({"method": label}, _averaged, some, len(each), dataset, averaged, shares, weight))
    return common.Study(
        f"{dataset.name}: {dataset.num_features:,} features, {dataset.num_classes:,} classes\n"
        f"{len(dataset.train):,} training and {len(dataset.test):,} {settings.split} examples",
        methods,
        (
            common.Column("method", "method"),
            *(common.Column(f"P@{k}", f"p_at_{k}", ".3f", spread=True) for k in (1, 3, 5)),
            common.Column("nDCG@5", "ndcg_at_5", ".3f"),
            common.Column("PSP@5", "psp_at_5", ".3f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (
            comparing.progress(
                "p_at_1", f"P@1 of {CURVE_EXAMPLES:,} examples", simple="nearest neighbours", of="p_at_1"
            ),
        ),
        picture="train.png",
        may_change=("seeds", "average", "dataset", "checkpoint_every", "keep"),
        results=functools.partial(_results, settings, dataset),
        data=f"{dataset.digest} {hashlib.blake2b(repr(dataset.class_names).encode(), digest_size=8).hexdigest()}",
        notes=notes_on(dataset, tf_idf=settings.tf_idf),
    )


def _results(settings: Train, dataset: data.Dataset, row: common.Row) -> list[common.Row]:
    about = {"task": "extreme", "data": dataset.name, "split": settings.split, "method": row["method"]}
    about |= {name: row[name] for name in ("seed", "seconds", "step") if name in row}
    return [about | {name.replace("_at_", "@"): value for name, value in row.items() if "_at_" in name}]


def _start(settings: Train, dataset: data.Dataset, *, new: bool) -> Run:
    training = settings.training(dataset, new=new)
    return Run(settings, dataset, training, *training.make(*settings.pair_of(dataset.num_classes)))


def _identity(settings: Train, dataset: data.Dataset) -> dict[str, Any]:
    training = settings.training(dataset, new=False)
    return {**training.batches.identity, **identity_of(settings, training.num_steps)}


def _fitted(settings: Train, dataset: data.Dataset, *, progress: bool = True) -> tuple[Run, common.Row]:
    """A run at its end, and figures of its training; of a run that is there already the end alone."""
    out = common.writable_folder(settings.out)
    run = _start(settings, dataset, new=not begun(out))
    config = json.dumps(dataclasses.asdict(settings), indent=1, default=str) + "\n"
    num_steps, measure = run.training.num_steps, run.training.on_the_way
    assert measure is not None
    points = {round(share * num_steps) for share in MEASURED_AT}
    fitted = fit(
        run.model,
        run.optimizer,
        run.training.batches,
        num_steps=num_steps,
        validation=Validation([()], lambda model, _: dict(measure(model)), every=lambda step: step in points),
        folder=out,
        identity=identity_of(settings, num_steps),
        checkpoint_every=settings.checkpoint_every,
        keep=settings.keep,
        progress=progress,
        on_start=lambda: write_atomically(out / "config.json", config),
    )
    save_run(
        out, settings, dataset, run.model,
        max_features=run.training.batches.max_features, step=fitted.step, rarity=settings.rarity(),
    )  # fmt: skip
    curve = [record for record in fitted.records if "loss" not in record]
    figures: common.Row = {"curve": {name: [record[name] for record in curve] for name in (curve[0] if curve else ())}}
    if fitted.records:
        step, seconds = (fitted.records[-1][name] for name in ("step", "seconds"))
        # The first step compiles and is not on the clock.
        figures |= {"seconds": seconds, "ms_per_step": 1e3 * seconds / (step - 1) if step > 1 else None}
    return run, figures


def _trained(out: Path, settings: Train, dataset: data.Dataset, trained: dict[Train, Classifier] | None) -> common.Row:
    """A run of the study in ``out``; its model joins those that are ``trained`` already, if a mean is taken of it."""
    run, figures = _fitted(settings, dataset)
    if trained is not None:
        trained[settings] = run.model
    return figures | run.measure() | kept_in(out, settings.out / finished.FILE)


def _averaged(
    each: Sequence[Train],
    done: int,
    dataset: data.Dataset,
    trained: dict[Train, Classifier],
    shares: Callable[[], csr_array],
    weight: float,
) -> common.Row:
    """Of the models of several runs, the first ``done`` of which have been trained, if not by this process."""
    for number, of in enumerate(each):
        if of not in trained:
            trained[of] = _fitted(of, dataset, progress=number >= done)[0].model
    return measure_mixture(
        [trained[of] for of in each],
        dataset,
        loss=None if each[0].sampler is None else LOSSES[each[0].loss],
        shares=shares() if weight else None,
        weight=weight,
    )


def restore(folder: Path) -> Run:
    """A run with the values of its newest checkpoint.

    Args:
        folder: of a run of `candax train`.

    Returns:
        See ``Run``.

    Raises:
        ValueError: if the folder holds no run or no checkpoint, or settings that are none of this version; if the data
            are not those it was trained on.
    """
    config = folder / "config.json"
    if not config.exists():
        raise ValueError(f"expected a folder written by `candax train`, but {folder} holds no config.json.")
    model = folder / finished.FILE
    if model.exists() and not begun(folder):  # with its model the run counts as finished
        raise ValueError(f"expected checkpoints in {folder}, found none: remove {model}, and train again.")
    settings = saved_settings(Train, config, out=folder)
    run = _start(settings, settings.load(), new=False)
    identity = {**run.training.batches.identity, **identity_of(settings, run.training.num_steps)}
    with Checkpoints(folder, identity=identity, reads=True) as checkpoints:
        checkpoints.restore(run.model, run.optimizer)
    return run


def evaluate(settings: Evaluate) -> dict[str, float]:
    """Measures the newest checkpoint of a run."""
    found = restore(settings.run).measure()
    write_json(settings.run / "evaluation.json", found)
    Console().print_json(data=found)
    return found
