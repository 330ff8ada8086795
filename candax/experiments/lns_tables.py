"""Locality sensitive Negative Sampling, tables 2 and 3 and figure 4: precision, epochs and time of seven methods.

    candax experiment lns-tables
    candax experiment lns-tables --config yso-en --dataset FOLDER
    candax experiment lns-tables --config amazon-670k --dataset FOLDER      (the paper's hyperparameters)

Full softmax, TopK (64 classes per example), LSH Embedding, LSH Label, frequency-based, sampled softmax (log-uniform)
and NCE, all but TopK with the same number of candidates; beside the paper's methods LSH near the largest logits instead
of the closest vectors, alone and with a sampled tail. Time is that of training steps and refreshes, relative to the
full softmax in the same run, whose logits are held all at once where they fit.

The paper's claims: both LSH methods end at 93.8 % or more of full softmax's P@1, reach 90 % of it in about its number
of epochs, and take 6.5 to 22 times less time per epoch; static samplers stay behind.

Expected on python-stdlib (5 to 8 minutes on 2 cores): full softmax P@1 .408; top_k .413; LSH Embedding .375 and LSH
Label .354, below the paper's range; frequency-based .404, sampled softmax .406, NCE .403; near the logit .391, with a
tail .406; static samplers 8 to 10 times quicker per epoch, LSH 5 to 8. Labels are skewed here, and static samplers
that follow their frequency are hard to beat. The figures of yso-en (25 to 40 minutes) and acl-authors (an hour) are in
docs/papers/lns.md.

Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section 3.
"""

import dataclasses
from typing import Any, ClassVar

from candax import data
from candax.experiments.lns_configurations import METHODS, MethodName, OnDataset
from candax.recipes import common
from candax.recipes.extreme import problem

CLAIM = "paper: LSH follows full softmax epoch by epoch at a fraction of its time, static samplers lag"


@dataclasses.dataclass(frozen=True)
class Tables(OnDataset):
    """Trains by every method; prints a table, writes results.json and a picture (figure 4)."""

    methods: tuple[MethodName, ...] = tuple(METHODS)
    """Methods to compare with the full softmax."""
    curve_examples: common.Count = problem.CURVE_EXAMPLES
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""

    QUICK: ClassVar = {**OnDataset.QUICK, "methods": ("lsh_embedding", "sampled_softmax", "lsh_logit_with_tail")}


@common.command
def tables(settings: Tables) -> common.Study:
    """Runs the study; the rows of the table, full softmax first."""
    return study(settings.load(), settings, CLAIM)


def study(dataset: data.Dataset, settings: Tables, claim: str, *before: common.Panel) -> common.Study:
    """The study on a given data set, with the panels ``before`` put before those of the curves."""
    number = settings.configuration.num_sampled(dataset.num_classes)
    others: dict[str, Any] = {
        name: METHODS[name](settings.configuration, settings.num_sampled(name, dataset)) for name in settings.methods
    }
    training = settings.training(dataset, curve_examples=settings.curve_examples)
    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes, {number:,} candidates, {training.num_steps:,} steps",
        problem.contest(training, settings.batch_size(dataset), dataset.num_classes, others),
        problem.COLUMNS,
        (*before, *problem.PANELS),
        claim,
        problem.CAPTION,
        data=dataset.digest,
    )
