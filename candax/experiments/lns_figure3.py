"""Locality sensitive Negative Sampling, figure 3: which distributions follow the model's own as it learns.

    candax experiment lns-figure3
    candax experiment lns-figure3 --dataset FOLDER --sampler log_uniform

The target is the true negative distribution: the softmax over the classes that are not labels of an example. Beside it
uniform, log-uniform and unigram samplers, and the probability of being found by LSH Embedding and LSH Label: SimHash
and DWTA of class vectors (the paper's way), and SimHash of class vectors extended by bias and length, near the largest
logits. Total variation distance to the target, mean over test examples, before training and after it; trained by the
full softmax, so that no sampler shapes the model that it is judged by. LSH is taken with unbounded buckets and all L
tables: what counts is the probability over all hash functions, not a draw of them.

The paper's claims: at first the target is nearly uniform, and all distributions are close to it; late it is far from
uniform, and LSH follows it.

Expected on python-stdlib (37,769 classes, 504 steps, about 4 minutes on 2 cores), distances to the target:

* Before: uniform .003, SimHash by embedding .17 (K = 8) and .60 (K = 32), near the logit .08 and .32, log-uniform .68.
  The target is uniform, but only flat hash functions are near it.
* After: uniform .84, unigram .66, log-uniform .58; LSH Embedding with SimHash .73 (K = 8) and .46 (K = 32), DWTA .82.
  So LSH follows the target better than any static sampler where its hashes are sharp, and then 16 tables find next to
  nothing (2e-8 classes per example); where tables find enough, frequencies are nearer. LSH Label (.84 to .91) is no
  nearer than uniform.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), figure 3.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from candax import data, losses, samplers
from candax.base import Query
from candax.diagnostics.negative_distributions import (
    by_rank,
    lsh_inclusion,
    model_weights,
    static_counts,
    total_variation,
    without_labels,
)
from candax.experiments.lns_configurations import OnDataset
from candax.recipes import common
from candax.recipes.common.catalog import SAMPLERS, SamplerName
from candax.training import embed

# An example's best classes by the target, whose probability is reported beside the distance.
_TOP = 100
_NUM_SAMPLED = 1024
Weights = Callable[[Query], Float[np.ndarray, "B num_classes"]]


@dataclasses.dataclass(frozen=True)
class LNSFigure3(OnDataset):
    """Measures sampling distributions before and after training; prints a table, writes results.json, figure3.png."""

    sampler: SamplerName | None = None
    """Train with 1024 candidates of this sampler and the loss css, instead of the full softmax, which may be slow."""
    num_examples: common.Count = 64
    """Number of test examples, which are chosen at random."""
    simhash: tuple[common.Count, ...] = (8, 32)
    """SimHash is measured with each of these numbers of hash functions per table (K), with 16 tables."""
    dwta: tuple[common.Count, ...] = (5,)
    """DWTA (bins of 8, 150 tables) is measured with each of these K; the paper has 5 for its smallest data set."""

    QUICK: ClassVar = {"config": "toy", "num_examples": 12}

    def check(self) -> None:
        """See ``Settings``; errors of means need two examples."""
        super().check()
        self.expect(self.num_examples >= 2, "--num-examples of 2 or more", "num_examples")


COLUMNS = common.columns(when="", distribution="", distance=".3f", error=".3f", on_top=".3f", found=".3g")
CLAIMS = ("all are close to uniform", "LSH follows the target")


@common.command
def lns_figure3(settings: LNSFigure3) -> common.Study:
    """Runs the study; a row for each distribution before training and after it."""
    dataset = settings.load()
    examples = _examples(settings, dataset)
    training = settings.training(dataset, curve_examples=None)
    ((batch, _),) = data.evaluation_batches(examples, len(examples), training.batches.max_features)

    def query(model: Any) -> dict[str, Query]:
        return {"query": Query(embed(model, batch), jnp.asarray(batch.labels), model.head.classes())}

    @functools.cache
    def query_after(steps: int) -> Query:
        if not steps:
            return query(training.make(None, losses.full_softmax)[0])["query"]
        by: tuple[Any, Any]
        if settings.sampler is None:
            by = None, common.full_softmax_for(settings.batch_size(dataset), dataset.num_classes)
        else:
            by = SAMPLERS[settings.sampler](_NUM_SAMPLED), losses.css
        return training.by(*by, measure=query)(None)["query"]

    def measured(steps: int, name: str, weights: Weights) -> common.Method:
        labels = {"when": f"after {steps:,} steps", "distribution": name}
        return common.Method(labels, lambda folder: _measure(query_after(steps), name, weights))

    times = (0, training.num_steps)
    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes, mean over {len(examples)} test examples",
        [measured(steps, name, weights) for steps in times for name, weights in _weights(settings).items()],
        COLUMNS,
        [_panel(f"after {steps:,} steps", claim) for steps, claim in zip(times, CLAIMS, strict=True)],
        caption=f"on top: probability of the target's {_TOP} best classes; found: classes that LSH finds",
        reference="target",
        data=dataset.digest,
    )


def _panel(when: str, claim: str) -> common.Panel:
    lines = common.curves("rank", "probability", label="distribution", where=lambda row: row["when"] == when)
    # The smallest probabilities of sharp hash functions would squeeze all other curves.
    axes = {"xscale": "log", "yscale": "log", "ylim": (1e-10, None), "xlabel": "rank of a class by the target"}
    return common.Panel(lines, {**axes, "ylabel": "probability of the class", "title": f"{when}; paper: {claim}"})


def _weights(settings: LNSFigure3) -> dict[str, Weights]:
    families: dict[str, dict[str, Any]] = {
        "SimHash": {"near": "vector", "hash": samplers.simhash(), "num_tables": 16},
        "SimHash near logit": {"near": "logit", "hash": samplers.simhash(), "num_tables": 16},
        "DWTA": {"near": "vector", "hash": samplers.dwta(8), "num_tables": 150},
    }
    statics: tuple[SamplerName, ...] = ("uniform", "log_uniform", "unigram")
    return {
        "target": model_weights,
        **{name: functools.partial(static_counts, SAMPLERS[name](1)) for name in statics},
        **{
            f"LSH {by}, {name}, K = {number}": functools.partial(lsh_inclusion, by=by, num_hashes=number, **family)
            for by in ("embedding", "label")
            for name, family in families.items()
            for number in (settings.dwta if name == "DWTA" else settings.simhash)
        },
    }


def _examples(settings: LNSFigure3, dataset: data.Dataset) -> data.Examples:
    """Some test examples that have labels, and classes beside them: all others have no negatives."""
    number = np.diff(dataset.test.labels.indptr)
    labelled = np.flatnonzero((number > 0) & (number < dataset.num_classes))
    if len(labelled) < 2:
        raise ValueError(
            f"expected 2 test examples or more that have labels, but not all classes, got {len(labelled)} in "
            f"{settings.where}."
        )
    rows = np.sort(np.random.default_rng(settings.seed).permutation(labelled)[: settings.num_examples])
    return data.Examples(dataset.test.features[rows], dataset.test.labels[rows])


def _measure(query: Query, name: str, weights: Weights) -> dict[str, Any]:
    target = without_labels(model_weights(query), query)
    of_all = weights(query)
    q = without_labels(of_all, query)
    distance, mean = total_variation(target, q), by_rank(q, np.argsort(-target, axis=1, kind="stable"))
    # Labels rank behind all other classes, and there every distribution is 0.
    ranks = int(np.count_nonzero(target, axis=1).min())
    edges = _edges(ranks)
    return {
        "distance": float(distance.mean()),
        "error": float(distance.std(ddof=1) / np.sqrt(len(distance))),
        "on_top": float(mean[:_TOP].sum()),
        "found": float(of_all.sum(axis=1).mean()) if name.startswith("LSH") else None,
        "curve": {
            "rank": np.sqrt((edges[:-1] + 1.0) * edges[1:]),
            "probability": np.add.reduceat(mean[:ranks], edges[:-1]) / np.diff(edges),
        },
    }


def _edges(ranks: int) -> Int[np.ndarray, " edges"]:
    """Groups of ranks: first 1 each, then about 8 groups for each factor of 10."""
    edges = np.unique(np.round(np.geomspace(1, ranks, 1 + max(1, round(8 * np.log10(ranks))))).astype(np.int64))
    return np.concatenate([[0], edges])
