"""Two-tower retrieval: which item comes next, by full softmax and by candidates.

    candax experiment retrieval
    candax experiment retrieval --dataset shop.tsv --split time

The user's tower reads a bag of the history (``candax.models.HistoryTower``); the item's is the head, with one table for
both. In-batch candidates are corrected for popularity, alone and mixed with sampled ones. Figures are over all items;
those that the user has already are out of the ranking. Each model is asked once more through IVF-BQ, which reads 10 %
of the codes.

The default data are the functions of Python's standard library as users and the identifiers that they use as items.

Expected with the defaults (20 minutes on 2 busy cores), recall at 10: full softmax .373, in-batch and uniform .362,
in-batch and unigram .354, in-batch .349, log_uniform .332, each 5 to 9 times quicker per step; full softmax through
IVF-BQ .365.
"""

import dataclasses
import functools
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np
import optax
from flax import nnx

import candax as cx
from candax import data, models, samplers
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.retrieval.metrics import evaluate_retrieval, exact_search, index_search
from candax.training import embed

KS = (10, 100)
_STDLIB = "python-stdlib"


@dataclasses.dataclass(frozen=True)
class Retrieval(common.Contest):
    """Trains a two-tower model by several methods; prints a table, writes results.json and retrieval.png."""

    dataset: str = _STDLIB
    """python-stdlib, a file of tab-separated lines (user, item[, time]), or a folder with train.tsv and test.tsv."""
    split: Literal["last", "time", "file"] | None = None
    """What is for testing: each user's last item, the latest interactions, or the test file."""
    min_count: common.Count = 2
    """Items that occur less often are left out."""
    max_history: common.Count = 32
    """The most items of a history."""
    keep_seen: bool = False
    """Whether items that the user has already stay in the ranking."""
    hidden_dim: common.Count = 128
    """Width of the tower's hidden layer."""
    separate_tables: bool = False
    """Whether histories are read from a table of their own instead of the head's."""
    out: common.Out = Path("runs/retrieval")
    """Folder for results.json and retrieval.png."""
    QUICK: ClassVar = {**common.QUICK_CONTEST, "hidden_dim": 16, "curve_examples": 200}


def retrieval(settings: Retrieval) -> list[common.Row]:
    """Runs the contest and writes its files; returns the rows of the table."""
    settings = settings.ready()
    common.writable_folder(settings.out)
    dataset = _load(settings)
    chosen = np.sort(np.random.default_rng(0).permutation(len(dataset.test))[: settings.curve_examples])
    some = data.Examples(dataset.test.features[chosen], dataset.test.labels[chosen])
    training = common.Training(
        functools.partial(_make, settings, dataset),
        data.Batches(dataset.train, settings.batch_size, settings.seed, settings.max_history, 1),
        num_steps=0,  # each method has its own
        measure=lambda model: _measure(settings, model, dataset.test) | _by_index(settings, model, dataset.test),
        on_the_way=lambda model: _measure(settings, model, some),
    )
    figures = {"recall_at_10": "R@10", "ndcg_at_10": "nDCG@10", "recall_at_100": "R@100"}
    study = common.Study(
        f"{dataset.name}: next of {dataset.num_classes:,} items, {len(dataset.train):,} training and "
        f"{len(dataset.test):,} test examples",
        common.entrants(settings, training, dataset.num_classes),
        common.contest_columns({**figures, "indexed_recall_at_10": "R@10 by IVF-BQ"}),
        common.contest_panels("recall_at_10", "recall at 10 on test data"),
        picture="retrieval.png",
        may_change=("methods",),
        data=dataset.digest,
    )
    return common.run(study, settings)


def _load(settings: Retrieval) -> data.Dataset:
    if settings.dataset == _STDLIB:
        if settings.split not in (None, "last"):
            raise ValueError(f"expected --split last for {_STDLIB}, which has no times, got {settings.split!r}.")
        return data.python_next_items(min_count=settings.min_count)
    read = data.interactions(settings.dataset, min_count=settings.min_count)
    return data.next_items(read, split=settings.split, max_history=settings.max_history)


def _make(
    settings: Retrieval, dataset: data.Dataset, sampler: Sampler | None, loss: Any
) -> tuple[models.Classifier, cx.Optimizer]:
    rngs, counts = nnx.Rngs(settings.seed), dataset.label_counts(dataset.train)
    head = common.plain_head(dataset.num_classes, settings.dim, counts, seed=settings.seed, rngs=rngs)
    head.use(sampler, loss)
    tower = models.HistoryTower(head, settings.hidden_dim, tied=not settings.separate_tables, rngs=rngs)
    model = models.Classifier(tower, head)
    return model, cx.Optimizer(model, optax.adam(settings.learning_rate), seed=settings.seed)


def _measure(
    settings: Retrieval, model: models.Classifier, examples: data.Examples, search: Any = None
) -> dict[str, float]:
    return evaluate_retrieval(
        functools.partial(embed, model),
        search or exact_search(model.head.classes()),
        data.evaluation_batches(examples, min(1024, len(examples)), settings.max_history, max_labels=1),
        examples.labels,
        ks=KS,
        exclude=None if settings.keep_seen else examples.features,
    )


def _by_index(settings: Retrieval, model: models.Classifier, examples: data.Examples) -> dict[str, float]:
    classes, number = model.head.classes(), model.head.num_classes
    asked = max(KS) + settings.max_history
    seen = min(number, max(number // 10, 2 * asked))
    index = samplers.ivf_index(
        num_centers=max(1, min(256, number // 64)),
        hm_num=seen,
        num_kept=min(seen, max(seen // 5, asked)),
        codes="rotated",
        near="logit",
    )
    start = time.perf_counter()
    built = jax.block_until_ready(jax.jit(index.build)(jax.random.key(settings.seed), classes))
    seconds = time.perf_counter() - start
    figures = _measure(settings, model, examples, index_search(index, built, classes))
    found = {f"indexed_{name}": value for name, value in figures.items() if name != "num_examples"}
    return {**found, "build_seconds": seconds, "share_of_codes_read": seen / number}
