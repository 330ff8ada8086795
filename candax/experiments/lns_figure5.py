"""Locality sensitive Negative Sampling, figure 5: data with a flattened label distribution, where static samplers fail.

    candax experiment lns-figure5
    candax experiment lns-figure5 --config yso-en --dataset FOLDER --max-count 10 --epochs 5

Frequent classes are down-sampled until all that are left have between half of ``--max-count`` and ``--max-count``
training examples (``candax.data.flatten_labels``); then every method of ``lns_tables`` is trained on what is left, and
the label frequencies before and after are drawn beside its curves. Hyperparameters are those of the full data set.

The paper's claims: static samplers, which count on a few frequent classes, fail; LSH does not care.

Expected on yso-en as above (20,492 classes, 1,639 candidates; 40 minutes on 2 busy cores): full softmax P@1 .134, LSH
Label .131, frequency-based .135, LSH Embedding .110, LSH near the logit .107, sampled softmax .098, NCE .073, top_k
.062, LSH with a log-uniform tail .020. On acl-authors with --max-count 10 (9,084 classes, 182 candidates): full softmax
.063, frequency-based .039, LSH Label .037, LSH Embedding .032, top_k .027, LSH near the logit .015, sampled softmax and
NCE .007. On python-stdlib (3 minutes; only 367 classes and 15 candidates are left, so this says little): full softmax
.142, top_k .147, frequency-based .036, LSH Embedding and Label .032, NCE .020, sampled softmax .016.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.5 and
figure 5.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from candax import data
from candax.experiments.lns_tables import Tables, study
from candax.recipes import common

CLAIM = "paper: static samplers, which count on a few frequent classes, fail; LSH does not care"


@dataclasses.dataclass(frozen=True)
class Figure5(Tables):
    """Flattens a data set and trains by every method; prints a table, writes results.json and a picture."""

    max_count: common.Count = 40
    """The most training examples that a class is left with."""
    min_count: common.Count | None = None
    """The fewest training examples of a class that is left; by default half of --max-count."""
    epochs: common.Positive | None = 10
    """Passes over the training set, which is much smaller after flattening."""

    QUICK: ClassVar = {"config": "toy", "methods": ("sampled_softmax",), "max_count": 6, "epochs": 2.0}


@common.command
def figure5(settings: Figure5) -> common.Study:
    """Runs the study; the rows of the table, full softmax first."""
    before = settings.load()
    after = data.flatten_labels(before, max_count=settings.max_count, min_count=settings.min_count, seed=settings.seed)
    if not len(after.test):
        raise ValueError(
            f"expected test examples of the {after.num_classes:,} classes that are left of {settings.where}, found "
            "none. Another --max-count leaves others."
        )
    axes = {"xlabel": "classes, the most frequent first", "ylabel": "training examples"}
    frequencies = common.Panel(
        lambda rows: [_frequencies("before", before), _frequencies("after", after)],
        {**axes, "xscale": "log", "yscale": "log"},
    )
    return study(after, settings, CLAIM, frequencies)


def _frequencies(when: str, dataset: data.Dataset) -> common.Line:
    counts = dataset.label_counts(dataset.train)
    label = f"{when}: {len(dataset.train):,} examples, {data.distance_from_uniform(counts):.3f} from uniform"
    return common.Line(label, np.arange(1, len(counts) + 1), np.maximum(np.sort(counts)[::-1], 0.5))
