"""Locality sensitive Negative Sampling, figure 3: which distributions follow the model's own as it learns.

    python -m candax.experiments.lns_figure3
    python -m candax.experiments.lns_figure3 --dataset FOLDER --sampler log_uniform

The target is the true negative distribution: the softmax over the classes that are not labels of an example. Beside it
uniform, log-uniform and unigram samplers, and the probability of being found by LSH Embedding and LSH Label: SimHash
and DWTA of class vectors (the paper's way), and SimHash of class vectors extended by bias and length, near the largest
logits. Total variation distance to the target, mean over test examples, before training and after it; trained by the
full softmax, so that no sampler shapes the model that it is judged by. LSH is taken with unbounded buckets and all L
tables: of the hash functions only the probabilities count, averaged over all of them.

The paper's claims: at first the target is nearly uniform, and all distributions are close to it; late it is far from
uniform, and LSH follows it.

Expected on python-stdlib (37,769 classes, 504 steps, about 4 minutes on 2 cores), distances to the target:

* Before: uniform .003, SimHash by embedding .17 (K = 8) and .60 (K = 32), near the logit .08 and .32, log-uniform .68.
  The target is uniform, but only flat hash functions are near it.
* After: uniform .84, unigram .66, log-uniform .58; LSH Embedding with SimHash .73 (K = 8) and .46 (K = 32), DWTA .82.
  So LSH follows the target better than any static sampler where its hashes are sharp, and then 16 tables find next to
  nothing (2e-8 classes an example); where tables find enough, frequencies are nearer. LSH Label (.84 to .91) is no
  nearer than uniform.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), figure 3.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import tyro
from jaxtyping import Float, Int
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import data, losses, samplers, training
from candax.base import Query
from candax.experiments import setup
from candax.experiments.negative_distributions import (
    by_rank,
    lsh_inclusion,
    model_weights,
    static_counts,
    total_variation,
    without_labels,
)
from candax.pictures import save_picture
from candax.recipes.extreme.catalog import SAMPLERS, SamplerName
from candax.samplers.keys import Near
from candax.samplers.lsh.codes import HashFamily
from candax.samplers.lsh.index import QueryVector
from candax.training.metrics_log import write_atomically

# An example's best classes by the target, whose probability is reported beside the distance.
_TOP = 100
_STATIC: tuple[SamplerName, ...] = ("uniform", "log_uniform", "unigram")
_BIN = 8

Weights = Callable[[Query], Float[np.ndarray, "B num_classes"]]


@dataclasses.dataclass(frozen=True)
class LNSFigure3:
    """Measures sampling distributions before and after training; prints a table, writes results.json, figure3.png."""

    dataset: str = "python-stdlib"
    """python-stdlib, or a folder with train and test files in the Extreme Classification Repository's text format."""
    tf_idf: bool = False
    """Weigh counted features by how rare they are; for data whose feature values are counts."""
    sampler: SamplerName | None = None
    """Trains with 1024 candidates of this sampler and the loss css, where the full softmax takes too long."""
    epochs: float = 3
    """Passes over the training set."""
    batch_size: int = 256
    """Examples a step."""
    dim: int = 128
    """Width of the hidden layer and of the class vectors."""
    learning_rate: float = 5e-3
    """Of Adam."""
    num_examples: int = 64
    """Test examples, chosen at random."""
    simhash: tuple[int, ...] = (8, 32)
    """Of SimHash: hash functions a table (K), each number that is measured, with 16 tables."""
    dwta: tuple[int, ...] = (5,)
    """The same of DWTA with bins of 8 and 150 tables: 5 are the paper's for its smallest data set."""
    seed: int = 0
    """Of the model's initial values, the order of the batches and the choice of examples."""
    out: setup.Out = Path("runs/lns_figure3")
    """Folder for results.json and figure3.png."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One distribution at one time.

    Attributes:
        distribution: its name.
        total_variation: distance to the target, mean over examples.
        standard_error: of that.
        on_top: probability of an example's 100 best classes by the target, mean over examples.
        num_found: classes that LSH is expected to find, labels included, mean over examples; None for others.
        curve: (rank by the target, mean probability of a class there), ranks in groups that grow.
    """

    distribution: str
    total_variation: float
    standard_error: float
    on_top: float
    num_found: float | None
    curve: list[tuple[float, float]]


def _weights(settings: LNSFigure3) -> dict[str, Weights]:
    found: dict[str, Weights] = {"target": model_weights}
    for name in _STATIC:
        found[name] = functools.partial(static_counts, SAMPLERS[name](1))
    simhash, dwta = samplers.simhash(), samplers.dwta(_BIN)
    hashes: tuple[tuple[str, HashFamily, Near, tuple[int, ...], int], ...] = (
        ("SimHash", simhash, "vector", settings.simhash, 16),
        ("SimHash near logit", simhash, "logit", settings.simhash, 16),
        ("DWTA", dwta, "vector", settings.dwta, 150),
    )
    queries: tuple[QueryVector, ...] = ("embedding", "label")
    for by, (name, family, near, numbers, num_tables) in itertools.product(queries, hashes):
        for num_hashes in numbers:
            found[f"LSH {by}, {name}, K = {num_hashes}"] = functools.partial(
                lsh_inclusion, by=by, hash=family, near=near, num_hashes=num_hashes, num_tables=num_tables
            )
    return found


def lns_figure3(settings: LNSFigure3) -> dict[str, list[Row]]:
    """Runs the experiment and writes its files; returns the rows before and after training."""
    common = _check(settings)
    out = setup.writable_folder(settings.out)
    dataset = setup.load(common)
    batches = setup.make_batches(common, dataset)
    steps = setup.num_steps(common, batches, default_epochs=settings.epochs)
    about = f"{dataset.name}: {dataset.num_classes:,} classes"
    Console().print(f"{about}; {batches.describe()}; {steps:,} steps")
    if settings.sampler is None:
        program = setup.make_program(common, dataset, None, setup.faster_full_softmax(common, dataset, batches))
    else:
        program = setup.make_program(common, dataset, SAMPLERS[settings.sampler](common.num_sampled), losses.css)
    examples = _examples(settings, dataset)
    ((batch, _),) = data.evaluation_batches(examples, len(examples), batches.max_features)
    state = program.init(settings.seed)
    weights = _weights(settings)
    found: dict[str, list[Row]] = {}
    for step in (0, steps):
        if step:
            state, _ = training.fit_program(program, state, batches, num_steps=steps)
        query = Query(program.embed(state, batch), jnp.asarray(batch.labels), program.classes(state))
        found[f"after {step:,} steps"] = _measure(query, weights)
    for title, rows in found.items():
        Console().print(_table(f"{about}; {title}", rows))
    results = {"data": about, "num_examples": len(examples), **dataclasses.asdict(settings)}
    results["rows"] = {title: [dataclasses.asdict(row) for row in rows] for title, rows in found.items()}
    write_atomically(out / "results.json", json.dumps(results, indent=1, default=str) + "\n")
    _draw(found, f"{about}; mean over {len(examples)} test examples", out / "figure3.png")
    return found


def _check(settings: LNSFigure3) -> setup.Settings:
    """The settings that all experiments share."""
    names = ("dataset", "tf_idf", "epochs", "batch_size", "dim", "learning_rate", "seed")
    common = setup.Settings(**{name: getattr(settings, name) for name in names})
    setup.check(common)
    if settings.num_examples < 2:
        raise ValueError(f"expected --num-examples of 2 or more, got {settings.num_examples}.")
    for name in ("simhash", "dwta"):
        if min(getattr(settings, name), default=1) < 1:
            raise ValueError(f"expected numbers of 1 or more after --{name}, got {getattr(settings, name)}.")
    if settings.dim < _BIN:
        raise ValueError(f"expected --dim of {_BIN} or more, the bin size of DWTA, got {settings.dim}.")
    return common


def _examples(settings: LNSFigure3, dataset: data.Dataset) -> data.Examples:
    """Some test examples that have labels."""
    labelled = np.flatnonzero(np.diff(dataset.test.labels.indptr))
    if len(labelled) < 2:
        raise ValueError(f"expected 2 test examples with labels or more, but {dataset.name} has {len(labelled)}.")
    rows = np.sort(np.random.default_rng(settings.seed).permutation(labelled)[: settings.num_examples])
    return data.Examples(dataset.test.features[rows], dataset.test.labels[rows])


def _measure(query: Query, weights: dict[str, Weights]) -> list[Row]:
    target = without_labels(model_weights(query), query)
    order = np.argsort(-target, axis=1, kind="stable")
    # Where the labels stand, behind all others, every distribution is 0.
    ranks = int(np.count_nonzero(target, axis=1).min())
    edges = _edges(ranks)
    middles = np.sqrt((edges[:-1] + 1.0) * edges[1:])
    rows = []
    for name, of_classes in weights.items():
        of_all = of_classes(query)
        q = without_labels(of_all, query)
        distance, mean = total_variation(target, q), by_rank(q, order)
        heights = np.add.reduceat(mean[:ranks], edges[:-1]) / np.diff(edges)
        rows.append(
            Row(
                distribution=name,
                total_variation=float(distance.mean()),
                standard_error=float(distance.std(ddof=1) / np.sqrt(len(distance))),
                on_top=float(mean[:_TOP].sum()),
                num_found=float(of_all.sum(axis=1).mean()) if name.startswith("LSH") else None,
                curve=list(zip(middles.tolist(), heights.tolist(), strict=True)),
            )
        )
    return rows


def _edges(ranks: int) -> Int[np.ndarray, "edges"]:
    """Groups of ranks: first 1 each, then about 8 groups a factor of 10."""
    edges = np.unique(np.round(np.geomspace(1, ranks, 1 + max(1, round(8 * np.log10(ranks))))).astype(np.int64))
    return np.concatenate([[0], edges])


def _table(title: str, rows: list[Row]) -> Table:
    caption = f"top {_TOP}: probability of the target's {_TOP} best classes; found: classes that LSH finds"
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), caption=caption)
    table.add_column("distribution", no_wrap=True)
    for column in ("distance", "error", f"top {_TOP}", "found"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        numbers = (f"{x:.3f}" for x in (row.total_variation, row.standard_error, row.on_top))
        table.add_row(row.distribution, *numbers, "" if row.num_found is None else f"{row.num_found:.3g}")
    return table


def _draw(found: dict[str, list[Row]], title: str, path: Path) -> None:
    claims = ("all are close to uniform", "LSH follows the target")
    names = [row.distribution for row in next(iter(found.values()))]
    kinds = list(dict.fromkeys(name.partition(", K")[0] for name in names))
    with save_picture(path, columns=2, size=(15, 8), share_y=False) as axes:
        for axis, (when, rows), claim in zip(axes, found.items(), claims, strict=True):
            for i, row in enumerate(rows):
                kind = row.distribution.partition(", K")[0]
                look: dict[str, Any] = {"color": f"C{kinds.index(kind) - 1}"}
                if row.distribution == "target":
                    look = {"color": "black", "linewidth": 2.5}
                elif not row.distribution.startswith("LSH"):
                    look |= {"linestyle": ":", "linewidth": 2}
                elif names[i - 1].startswith(kind):  # another K than the first
                    look |= {"linestyle": "--"}
                label = row.distribution if not i else f"{row.distribution}: {row.total_variation:.2f}"
                axis.plot(*zip(*row.curve, strict=True), label=label, **look)
            # The smallest probabilities of sharp hash functions would squeeze all others.
            axis.set(xscale="log", yscale="log", ylim=(1e-3 * rows[0].curve[-1][1], None))
            axis.set(title=f"{when}; paper: {claim}", xlabel="rank of a class by the target")
            axis.legend(title="distance to target", fontsize="small", loc="lower left")
        axes[0].set(ylabel="probability of the class")
        axes[0].figure.suptitle(title)


if __name__ == "__main__":
    lns_figure3(tyro.cli(LNSFigure3))
