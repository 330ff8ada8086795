"""Locality sensitive Negative Sampling, section 3: how fast tables fall behind the weights, and what prevents it.

    candax experiment lns-staleness
    candax experiment lns-staleness --config yso-en --dataset FOLDER

A model is trained with LSH Embedding for some steps, refreshed, and trained on without another refresh. On the way
recall is measured: the share of a test example's ten best classes (by logit, labels aside) that are candidates, with
the tables as they are, and with tables built anew at that moment from the same hash functions. Tables are kept in three
ways: only the refresh, changed rows moved after every step (the paper's algorithm 5), or after every fifth. Buckets are
found near the closest vectors, as in the paper, and near the largest logits.

The paper's claim: weights move much at first and little later, so that rebuilding after 50 steps and then exponentially
more rarely is enough.

Expected on python-stdlib (8 minutes on 2 cores; standard errors about .02), recall near the largest logits:

* Refreshed after 50 steps: 1 at first; with the refresh only, .58 after 40 more and .63 after 100; built anew, or with
  rows moved every step or every fifth, 1 all the time. So early on 50 steps without a refresh are too many.
* Refreshed after 400 steps: .93 at first; with the refresh only, .84 after 40 more and .69 after 100; built anew, .90;
  rows moved every step .86 and .83, every fifth .84 and .84, 0 to .04 below tables built anew (full buckets evict).

Near the closest vectors .14 at first, later 0 to .12, fresh or not: those are other classes than the ones of largest
logit, for class vectors differ in length and bias.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.
"""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from candax import data, losses
from candax.diagnostics import measure_staleness
from candax.experiments.lns_configurations import OnDataset
from candax.recipes import common
from candax.training import fit

Near = Literal["vector", "logit"]
_REBUILT = "refresh only"
KEPT: dict[str, int | None] = {_REBUILT: None, "rows moved after every step": 1, "rows moved after every 5 steps": 5}


@dataclasses.dataclass(frozen=True)
class LNSStaleness(OnDataset):
    """Measures recall of LSH tables against steps since a refresh; prints a table, writes results.json, a picture."""

    near: tuple[Near, ...] = ("vector", "logit")
    """What buckets are to hold. vector: the closest class vectors, as in the paper; logit: those of largest logit."""
    after: tuple[common.Count, ...] = (50, 400)
    """Numbers of training steps before the refresh; each is measured."""
    steps: common.Count = 100
    """Training steps after the refresh, without another one."""
    every: common.Count = 20
    """Steps between measurements."""
    top_k: common.Count = 10
    """Recall is of this many best classes of an example."""
    num_batches: common.Count = 8
    """Batches of test examples at every measurement."""

    QUICK: ClassVar = {
        **OnDataset.QUICK,
        **{"near": ("vector",), "after": (5, 2), "steps": 20, "every": 10, "top_k": 3, "num_batches": 2},
    }

    def check(self) -> None:
        """See ``Settings``; errors are computed over batches."""
        super().check()
        self.expect(bool(self.after and self.near), "a number after --after and a word after --near", "after", "near")
        self.expect(self.num_batches >= 2, "--num-batches of 2 or more", "num_batches")


COLUMNS = common.columns(after="", near="", kept="", steps="", recall=".2f", fresh_recall=".2f")


@common.command
def lns_staleness(settings: LNSStaleness) -> common.Study:
    """Runs the study; a row for each number of steps before the refresh and each way to keep tables."""
    dataset, configuration = settings.load(), settings.configuration
    if settings.top_k > dataset.num_classes:
        raise ValueError(
            f"expected --top-k of at most {dataset.num_classes:,}, the number of classes of {settings.where}, got "
            f"{settings.top_k:,}."
        )
    number = settings.num_sampled("lsh_embedding", dataset)
    training = settings.training(dataset, curve_examples=None)
    tests = _test_batches(settings, dataset, training.batches.max_features)

    def lsh(near: Near, kept: str) -> Any:
        kept_so = dataclasses.replace(configuration, update_every=KEPT[kept])
        return kept_so.lsh("embedding", number, near=near)

    @functools.cache
    def trained(after: int, near: Near) -> tuple[Any, Any]:
        """All ways to keep tables start from the same training, in which tables are only rebuilt."""
        model, optimizer = training.make(lsh(near, _REBUILT), losses.css)
        fit(model, optimizer, training.batches, num_steps=after, description=f"near {near}")
        return model, optimizer

    def measured(after: int, near: Near, kept: str, folder: Path | None) -> dict[str, Any]:
        model, optimizer = trained(after, near)
        model.head.use(lsh(near, kept), losses.css)
        options = {name: getattr(settings, name) for name in ("every", "top_k")}
        options |= {"num_steps": settings.steps, "key": jax.random.key(settings.seed)}
        found = measure_staleness(model, optimizer, training.batches, tests, **options)
        figures = {name: getattr(found, name) for name in ("recall", "fresh_recall", "lost")}
        values = {name: measure.value for name, measure in figures.items()}
        errors = {f"{name}_error": measure.standard_error for name, measure in figures.items()}
        return {"steps": found.steps, **values, **errors, "curve": {"step": found.steps, **values}}

    after = sorted(settings.after)
    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes, {number:,} candidates: recall of the best classes",
        [
            common.Method(dict(zip(("after", "near", "kept"), plan, strict=True)), functools.partial(measured, *plan))
            for plan in itertools.product(after, settings.near, KEPT)
        ],
        COLUMNS,
        [_panel(steps) for steps in after],
        caption="recall at so many steps since the refresh, and fresh: with tables built anew at that moment",
        data=dataset.digest,
    )


def _panel(after: int) -> common.Panel:
    def here(row: common.Row) -> bool:
        return row["after"] == after

    def anew(row: common.Row) -> bool:
        return here(row) and row["kept"] == _REBUILT

    lines = (
        common.curves("step", "recall", label=lambda row: f"near {row['near']}, {row['kept']}", where=here),
        common.curves("step", "fresh_recall", label=lambda row: f"near {row['near']}, built anew", where=anew),
    )
    axes = {"title": f"refreshed after {after:,} steps", "xlabel": "steps since the refresh", "ylabel": "recall"}
    return common.Panel(lines, axes)


def _test_batches(settings: LNSStaleness, dataset: data.Dataset, max_features: int) -> list[Any]:
    # Whole batches: padded examples would count.
    batch_size = min(settings.batch_size(dataset), len(dataset.test) // settings.num_batches)
    if batch_size < 1:
        raise ValueError(f"expected --num-batches of at most {len(dataset.test)}, the number of test examples.")
    rows = np.random.default_rng(settings.seed).permutation(len(dataset.test))[: settings.num_batches * batch_size]
    examples = data.Examples(dataset.test.features[rows], dataset.test.labels[rows])
    return [batch for batch, _ in data.evaluation_batches(examples, batch_size, max_features)]
