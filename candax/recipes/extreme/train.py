"""`candax train` and `candax evaluate`: one model, trained with checkpoints and measured on the whole test set."""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import tyro
from rich.console import Console

import candax as cx
from candax import data, losses
from candax.models import Classifier
from candax.recipes import common
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.extreme import linear
from candax.recipes.extreme.problem import faster_full_softmax
from candax.recipes.extreme.setting import QUICK, Setting
from candax.training import Checkpoints, evaluate_dataset, fit
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class Train(Setting):
    """Trains one model and writes checkpoints and metrics; run again with the same settings, it goes on."""

    sampler: SamplerName | None = "log_uniform"
    """Where candidates come from; None trains with the full softmax."""
    loss: LossName = "one_vs_all"
    """Loss on the candidates."""
    encoder: Literal["linear", "relu"] = "linear"
    """linear: starts from the data and ends better; relu: starts at random, as in `candax compare`."""
    dim: common.Count = 512
    """Coordinates of embeddings and class vectors."""
    epochs: common.Positive = 4.0
    """Passes over the training set."""
    out: common.Out = Path("runs/train")
    """Folder of the run: config.json, metrics.jsonl, checkpoints/, results.json."""
    checkpoint_every: common.Count = 500
    """Steps between checkpoints."""
    keep: common.Count = 3
    """Checkpoints kept."""
    QUICK: ClassVar = QUICK

    def training(self, dataset: data.Dataset, *, new: bool = True, **options: Any) -> common.Training:
        """See ``Setting``; ``new`` is False for a model whose values come from a checkpoint."""
        training = super().training(dataset, **options)
        if self.encoder == "relu":
            return training
        told = dataset, self.dim, self.learning_rate, training.num_steps, self.seed
        return dataclasses.replace(training, make=functools.partial(linear.make, *told, new=new))


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measures the newest checkpoint of a run on the whole test set; prints JSON and writes evaluation.json."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of `candax train`."""


# Changing these does not change what a run computes, so a run may go on under other values of them.
# Of the data their digest decides, which batches have: a folder may move, or be given by another path.
_NO_PART_OF_IDENTITY = ("quick", "dataset", "out", "checkpoint_every", "keep", "epochs", "steps")


class Run(NamedTuple):
    """A run of `candax train`: model and optimizer at its start, or from its newest checkpoint."""

    settings: Train
    dataset: data.Dataset
    training: common.Training
    model: Classifier
    optimizer: cx.Optimizer

    @property
    def identity(self) -> dict[str, Any]:
        """What all parts of the run share."""
        values = dataclasses.asdict(self.settings)
        kept = {name: value for name, value in values.items() if name not in _NO_PART_OF_IDENTITY}
        # With the linear encoder the rate falls to 0 at the last step.
        return kept if self.settings.encoder == "relu" else {**kept, "num_steps": self.training.num_steps}

    def measure(self, name: str) -> dict[str, float]:
        """Measures the model, prints what was found and writes it into the run's folder."""
        figures = evaluate_dataset(self.model, self.dataset, self.training.batches)
        result = {"step": int(self.optimizer.step[...]), **figures}
        write_atomically(self.settings.out / name, json.dumps(result, indent=1) + "\n")
        Console().print_json(data=result)
        return result


def _start(settings: Train, full_softmax: Callable[..., Any] | None = None, *, new: bool = True) -> Run:
    dataset = settings.load()
    training = settings.training(dataset, new=new)
    if settings.sampler is not None:
        pair: tuple[Any, Any] = settings.pair(settings.sampler, settings.loss)
    else:
        pair = None, full_softmax or faster_full_softmax(training, settings.batch_size, dataset.num_classes)
    return Run(settings, dataset, training, *training.make(*pair))


def train(settings: Train) -> dict[str, float]:
    """Trains, or goes on with, one run; returns and writes its final measurement."""
    settings = settings.ready()
    out = common.writable_folder(settings.out)
    run = _start(settings, new=not (out / "checkpoints").exists())
    config = json.dumps(dataclasses.asdict(settings), indent=1, default=str) + "\n"
    fit(
        run.model,
        run.optimizer,
        run.training.batches,
        num_steps=run.training.num_steps,
        folder=out,
        identity=run.identity,
        checkpoint_every=settings.checkpoint_every,
        keep=settings.keep,
        on_start=lambda: write_atomically(out / "config.json", config),
    )
    return run.measure("results.json")


def restore(folder: Path) -> Run:
    """A run with the values of its newest checkpoint.

    Args:
        folder: of a run of `candax train`.

    Returns:
        See ``Run``.

    Raises:
        ValueError: if the folder holds no run or no checkpoint, or the data are not those it was trained on.
    """
    config = folder / "config.json"
    if not config.exists():
        raise ValueError(f"expected a folder written by `candax train`, but {folder} holds no config.json.")
    run = _start(
        Train(**{**json.loads(config.read_text(encoding="utf-8")), "out": folder}), losses.full_softmax, new=False
    )
    identity = {**run.training.batches.identity, **run.identity}
    with Checkpoints(folder, identity=identity, keep=run.settings.keep) as checkpoints:
        checkpoints.restore(run.model, run.optimizer)
    return run


def evaluate(settings: Evaluate) -> dict[str, float]:
    """Measures the newest checkpoint of a run."""
    return restore(settings.run).measure("evaluation.json")
