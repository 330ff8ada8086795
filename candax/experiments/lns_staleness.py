"""Locality sensitive Negative Sampling, section 3: how fast tables fall behind the weights, and what keeps them near.

    python -m candax.experiments.lns_staleness
    python -m candax.experiments.lns_staleness --config yso-en --dataset FOLDER

A model is trained with LSH Embedding to some steps, refreshed, and trained on without another refresh. On the way test
examples say which share of their ten best classes (by logit, labels aside) is among the candidates: with the tables as
they are, and with tables built anew at that moment from the same hash functions. Three ways to keep tables: none but
the refresh, changed rows moved after every step (the paper's algorithm 5), and after every fifth. Buckets are found
near the likest vectors, as in the paper, and near the largest logits.

The paper's claim: weights move much at first and little later, so that rebuilding after 50 steps and then exponentially
rarer is enough.

Expected on python-stdlib (8 minutes on 2 cores; standard errors about .02), recall near the largest logits:

* Refreshed after 50 steps: 1, with a refresh only .58 after 40 steps and .63 after 100; built anew or moved every step
  or every fifth 1 all the time. So early on 50 steps without a refresh are too many.
* Refreshed after 400 steps: .93; with a refresh only .84 after 40 and .69 after 100, built anew .90; rows moved every
  step .86 and .83, every fifth .84 and .84, 0 to .04 below what building anew gives there (full buckets evict).

Near the likest vectors .14 at first, later 0 to .12, fresh or not: those are other classes than the ones of largest
logit, for class vectors differ in length and bias.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from rich.console import Console

from candax import data, losses, training
from candax.diagnostics import Staleness, draw_staleness, measure_staleness, staleness_table
from candax.experiments import setup
from candax.experiments.lns_configurations import CONFIGURATIONS, Name, load
from candax.samplers.common.keys import Near
from candax.training.metrics_log import write_atomically

_NEAR: tuple[Near, ...] = ("vector", "logit")
_REBUILT = "refresh only"
_KEPT: dict[str, int | None] = {_REBUILT: None, "rows, every step": 1, "rows, every 5 steps": 5}


@dataclasses.dataclass(frozen=True)
class LNSStaleness:
    """Measures recall of LSH tables against steps since a refresh; prints tables, writes results.json, pictures."""

    config: Name = "python-stdlib"
    """Data set and hyperparameters."""
    dataset: str | None = None
    """Folder with the files of the data set; python-stdlib needs none."""
    after: tuple[int, ...] = (50, 400)
    """Training steps before the refresh, each number that is measured."""
    steps: int = 100
    """Steps without another refresh."""
    every: int = 20
    """Steps between measurements."""
    top_k: int = 10
    """How many best classes of an example."""
    num_batches: int = 8
    """Batches of test examples at every measurement."""
    seed: int = 0
    """Of initial values, batches, hash functions and candidates."""
    out: setup.Out = Path("runs/lns_staleness")
    """Folder for results.json and a picture for each number of steps before the refresh."""


def lns_staleness(settings: LNSStaleness) -> dict[int, dict[str, Staleness]]:
    """Runs the experiment and writes its files; returns results by steps before the refresh and by method."""
    _check(settings)
    configuration, dataset = CONFIGURATIONS[settings.config], load(settings.config, settings.dataset)
    common = configuration.settings(dataset.name, dataset.num_classes, None, settings.seed)
    out = setup.writable_folder(settings.out)
    batches = setup.make_batches(common, dataset)
    about = f"{dataset.name}: {dataset.num_classes:,} classes, {common.num_sampled:,} candidates"
    Console().print(about)
    tests = _test_batches(settings, dataset, batches, common.batch_size)
    found: dict[int, dict[str, Staleness]] = {after: {} for after in sorted(settings.after)}
    for near in _NEAR:
        samplers = {
            name: dataclasses.replace(configuration, update_every=update_every).lsh(
                "embedding", common.num_sampled, near=near
            )
            for name, update_every in _KEPT.items()
        }
        programs = {
            name: setup.make_program(common, dataset, sampler, losses.css) for name, sampler in samplers.items()
        }
        # All ways to keep tables start from the same training, that with rebuilt ones.
        rebuilt = programs[_REBUILT]
        start = rebuilt.init(settings.seed)
        for after, results in found.items():
            start, _ = training.fit_program(rebuilt, start, batches, num_steps=after, description=f"near {near}")
            for name, program in programs.items():
                state = start.with_sampler(program.init(settings.seed).sampler)
                results[f"near {near}, {name}"] = measure_staleness(
                    program,
                    samplers[name],
                    state,
                    batches,
                    tests,
                    num_steps=settings.steps,
                    every=settings.every,
                    top_k=settings.top_k,
                    key=jax.random.key(settings.seed),
                )
    for after, results in found.items():
        Console().print(f"refreshed after {after:,} steps", staleness_table(results), sep="\n")
        draw_staleness(results, out / f"after_{after}.png")
    written = {"data": about, **dataclasses.asdict(settings)}
    written["after"] = {after: _plain(results) for after, results in found.items()}
    write_atomically(out / "results.json", json.dumps(written, indent=1, default=str) + "\n")
    return found


def _check(settings: LNSStaleness) -> None:
    for name in ("steps", "every", "top_k"):
        if getattr(settings, name) < 1:
            raise ValueError(f"expected --{name.replace('_', '-')} of 1 or more, got {getattr(settings, name)}.")
    if settings.num_batches < 2:
        raise ValueError(f"expected --num-batches of 2 or more, got {settings.num_batches}.")
    if not settings.after or min(settings.after) < 1:
        raise ValueError(f"expected numbers of 1 or more after --after, got {settings.after}.")


def _test_batches(settings: LNSStaleness, dataset: data.Dataset, batches: data.Batches, batch_size: int) -> list[Any]:
    # Whole batches: padded examples would count.
    batch_size = min(batch_size, len(dataset.test) // settings.num_batches)
    if batch_size < 1:
        raise ValueError(f"expected --num-batches of at most {len(dataset.test)}, the number of test examples.")
    rows = np.random.default_rng(settings.seed).permutation(len(dataset.test))[: settings.num_batches * batch_size]
    examples = data.Examples(dataset.test.features[rows], dataset.test.labels[rows])
    return [batch for batch, _ in data.evaluation_batches(examples, batch_size, batches.max_features)]


def _plain(results: dict[str, Staleness]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "steps": result.steps.tolist(),
            "recall": result.recall.value.tolist(),
            "recall_error": result.recall.standard_error.tolist(),
            "fresh_recall": result.fresh_recall.value.tolist(),
            "lost": result.lost.value.tolist(),
            "lost_error": result.lost.standard_error.tolist(),
        }
        for name, result in results.items()
    }


if __name__ == "__main__":
    lns_staleness(tyro.cli(LNSStaleness))
