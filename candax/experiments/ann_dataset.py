"""ANN Softmax, the methods of table 3 on real data: precision of the classification itself.

    candax experiment ann-dataset
    candax experiment ann-dataset --config acl-authors --dataset FOLDER

Data sets, batches and learning rates are those of the LNS experiments (``lns_configurations``), and so is the head:
logits with biases, no cosines, so that retrieval searches class vectors extended by bias and length. Candidates are a
tenth of the classes; time is that of training steps and builds, relative to the full softmax.

The paper's claims: ANN and KNN Softmax are as precise as the full softmax, LSH Softmax and Partial FC are not. The
paper's classes are equally frequent, those here are not.

Expected with the paper's codes, --codes mean, on python-stdlib without hf_softmax (10 minutes on 2 busy cores), P@1 and
time relative to the full softmax: full .408, Partial FC .383 (.20), ANN .379 (.61), KNN .379 (.36), LSH .378 (.36). On
acl-authors with --rate 0.02 --epochs 4 --methods ann_softmax partial_fc (20 minutes): full .072, ANN .072 (.37),
Partial FC .063 (.05).

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.3.
"""

import dataclasses
from typing import Any, ClassVar

from candax import losses
from candax.experiments import ann_methods
from candax.experiments.ann_methods import Coded, MethodName, Sizes
from candax.experiments.lns_configurations import OnDataset
from candax.recipes import common
from candax.recipes.extreme import problem


@dataclasses.dataclass(frozen=True)
class ANNDataset(Coded, OnDataset):
    """Trains by every method on a data set; prints a table, writes results.json and a picture."""

    methods: tuple[MethodName, ...] = ann_methods.METHODS[1:]
    """Methods to compare with the full softmax."""
    rate: common.Share = 0.1
    """Candidates of a group as a share of all classes: the paper's r."""
    num_groups: common.Count = 4
    """Groups of examples that share candidates: the paper's g."""
    curve_examples: common.Count = problem.CURVE_EXAMPLES
    """Test examples behind every point of the curves; the table's figures are of the whole test set."""

    QUICK: ClassVar = {**OnDataset.QUICK, "methods": ("ann_softmax",), "rate": 0.8, "num_groups": 1}


@common.command
def ann_dataset(settings: ANNDataset) -> common.Study:
    """Runs the study; a row for each method, full softmax first."""
    dataset = settings.load()
    batch_size = settings.batch_size(dataset)
    if batch_size % settings.num_groups:
        raise ValueError(
            f"expected --num-groups that divides a batch, which has {batch_size:,} examples of {settings.where} with "
            f"--config {settings.config}, got --num-groups {settings.num_groups}."
        )
    training = settings.training(dataset, curve_examples=settings.curve_examples)
    per_epoch = training.batches.batches_per_epoch
    sizes = Sizes(
        num_classes=dataset.num_classes,
        batch_size=batch_size,
        num_sampled=max(1, round(settings.rate * dataset.num_classes)),
        num_groups=settings.num_groups,
        period=max(1, per_epoch // 5),
        graph_period=per_epoch,
        near="logit",
        codes=settings.codes,
    )
    others: dict[str, Any] = {name: ann_methods.method(name, sizes, losses.subset_softmax) for name in settings.methods}
    return common.Study(
        f"{dataset.name}: {dataset.num_classes:,} classes, {sizes.num_sampled:,} candidates per group, "
        f"{training.num_steps:,} steps",
        problem.contest(training, batch_size, dataset.num_classes, others),
        problem.COLUMNS,
        problem.PANELS,
        "paper: ANN and KNN Softmax are as precise as the full softmax",
        problem.CAPTION,
        data=dataset.digest,
    )
