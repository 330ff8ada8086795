"""`candax train` and `candax evaluate`: one model, trained with checkpoints and measured on the whole test set."""

import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple

import tyro
from rich.console import Console

from candax import data, training
from candax.experiments import setup
from candax.recipes.extreme.catalog import LossName, SamplerName
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class Train(setup.Settings):
    """Trains one model and writes checkpoints and metrics; run again with the same settings, it goes on."""

    sampler: SamplerName | None = "log_uniform"
    """Where candidates come from; None trains with the full softmax."""
    loss: LossName = "sampled_softmax"
    """Loss on the candidates."""
    out: setup.Out = Path("runs/train")
    """Folder of the run: config.json, metrics.jsonl, checkpoints/, results.json."""
    checkpoint_every: int = 500
    """Steps between checkpoints."""
    keep: int = 3
    """Checkpoints kept."""


@dataclasses.dataclass(frozen=True)
class Evaluate:
    """Measures the newest checkpoint of a run on the whole test set; prints JSON and writes evaluation.json."""

    run: tyro.conf.Positional[Path]
    """Folder of a run of `candax train`."""


# Changing these does not change what a run computes, so a run may go on under other values of them.
_NO_PART_OF_IDENTITY = ("out", "checkpoint_every", "keep", "epochs", "steps")


def _identity(settings: Train) -> dict[str, Any]:
    return {name: value for name, value in dataclasses.asdict(settings).items() if name not in _NO_PART_OF_IDENTITY}


def _program(settings: Train, dataset: data.Dataset, batches: data.Batches) -> training.Program:
    if settings.sampler is None:
        return setup.make_program(settings, dataset, None, setup.faster_full_softmax(settings, dataset, batches))
    return setup.make_program(settings, dataset, *setup.sampler_and_loss(settings, settings.sampler, settings.loss))


def train(settings: Train) -> dict[str, float]:
    """Trains, or goes on with, one run; returns and writes its final measurement."""
    setup.check(settings)
    out = setup.writable_folder(settings.out)
    dataset = setup.load(settings)
    batches = setup.make_batches(settings, dataset)
    steps = setup.num_steps(settings, batches, default_epochs=3)
    program = _program(settings, dataset, batches)
    config = json.dumps(dataclasses.asdict(settings), indent=1, default=str) + "\n"
    state, _ = training.fit_program(
        program,
        program.init(settings.seed),
        batches,
        num_steps=steps,
        folder=out,
        identity=_identity(settings),
        checkpoint_every=settings.checkpoint_every,
        keep=settings.keep,
        on_start=lambda: write_atomically(out / "config.json", config),
    )
    return _measure(program, state, dataset, batches, out / "results.json")


class Restored(NamedTuple):
    """A run of `candax train` with the state of its newest checkpoint."""

    settings: Train
    program: training.Program
    state: training.TrainState
    dataset: data.Dataset
    batches: data.Batches


def restore(run: Path) -> Restored:
    """The program of a run, its data, and the newest checkpoint.

    Args:
        run: folder of a run of `candax train`.

    Returns:
        See ``Restored``.

    Raises:
        ValueError: if the folder holds no run or no checkpoint, or the data are not those it was trained on.
    """
    config = run / "config.json"
    if not config.exists():
        raise ValueError(f"expected a folder written by `candax train`, but {run} holds no config.json.")
    values = json.loads(config.read_text(encoding="utf-8"))
    settings = Train(**{**values, "out": run})
    dataset = setup.load(settings)
    batches = setup.make_batches(settings, dataset)
    program = _program(settings, dataset, batches)
    identity = {**batches.identity, **_identity(settings)}
    with training.Checkpoints(run, identity=identity, keep=settings.keep) as checkpoints:
        nodes = program.init(settings.seed).nodes
        checkpoints.restore(*nodes)
    return Restored(settings, program, training.TrainState.of(*nodes), dataset, batches)


def evaluate(settings: Evaluate) -> dict[str, float]:
    """Measures the newest checkpoint of a run."""
    run = restore(settings.run)
    return _measure(run.program, run.state, run.dataset, run.batches, settings.run / "evaluation.json")


def _measure(
    program: training.Program, state: training.TrainState, dataset: data.Dataset, batches: data.Batches, path: Path
) -> dict[str, float]:
    result = {"step": int(state.step), **training.evaluate_dataset(state.nodes[0], dataset, batches)}
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    Console().print_json(data=result)
    return result
