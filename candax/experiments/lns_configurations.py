"""Data sets, hyperparameters and methods of the LNS studies, by name.

The data sets of the paper (Amazon-670K, Wiki-325K, ODP, Amazon-Uniform) have its hyperparameters, and are ready to run
for those who have the files; python-stdlib, yso-en and acl-authors were tuned here; toy is for ``--quick``.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from candax import data, losses, samplers
from candax.base import Loss, Sampler
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES
from candax.recipes.extreme.problem import problem, toy

Name = Literal["python-stdlib", "yso-en", "acl-authors", "amazon-670k", "wiki-325k", "odp", "amazon-uniform", "toy"]
MethodName = Literal[
    "top_k", "lsh_embedding", "lsh_label", "frequency", "sampled_softmax", "nce", "lsh_logit", "lsh_logit_with_tail"
]
# What LSH methods find in hash tables, and at least one class that is drawn.
_LEAST_SLOTS = 2
# The most training steps of --quick, of any data.
_QUICK_STEPS = 100
# Candidates per example of TopK, which scores all classes to find them; the paper does not give its number.
_TOP_K = 64


@dataclasses.dataclass(frozen=True)
class Configuration:
    """How a data set is trained on."""

    hash: Literal["dwta", "simhash"]
    num_hashes: int  # K
    num_tables: int  # L
    sparsity: float  # slots of a candidate set as a share of all classes, of every method that samples
    batch_size: int
    learning_rate: float  # of Adam
    epochs: float
    dim: int = 128
    groups: int | None = None  # candidate sets per batch; None: one per example, as in the paper
    # Steps after which changed rows move to their new buckets: 1 is the paper's algorithm 5; None: at the next refresh.
    update_every: int | None = 1

    def num_sampled(self, num_classes: int) -> int:
        """Slots of a candidate set."""
        return max(1, round(self.sparsity * num_classes))

    def lsh(
        self,
        query: Literal["embedding", "label"],
        budget: int,
        *,
        near: Literal["vector", "logit"] = "vector",
        fill: Literal["uniform"] | None = "uniform",
    ) -> Sampler:
        """The LSH sampler of this configuration."""
        return samplers.lsh(
            query,
            hash=samplers.simhash() if self.hash == "simhash" else samplers.dwta(8),
            near=near,
            num_hashes=self.num_hashes,
            num_tables=self.num_tables,
            budget=budget,
            fill=fill,
            num_groups=self.groups,
            update_every=self.update_every,
            schedule=samplers.exponential_schedule(50),
        )


def _ours(sparsity: float, epochs: float, num_hashes: int = 8) -> Configuration:
    return Configuration("simhash", num_hashes, 16, sparsity, 256, 5e-3, epochs, groups=1, update_every=None)


def _papers(num_hashes: int, num_tables: int, sparsity: float, batch_size: int, epochs: float) -> Configuration:
    # The paper does not say how many epochs it trained; table 2 shows the last at which some method reached 90 %.
    return Configuration("dwta", num_hashes, num_tables, sparsity, batch_size, 1e-4, epochs)


CONFIGURATIONS: dict[Name, Configuration] = {
    "python-stdlib": _ours(0.04, 3),
    "yso-en": _ours(0.08, 1),
    "acl-authors": _ours(0.02, 8, num_hashes=12),
    "amazon-670k": _papers(6, 400, 0.05, 1024, 45),
    "wiki-325k": _papers(5, 300, 0.1, 256, 35),
    "odp": _papers(5, 150, 0.04, 128, 90),
    "amazon-uniform": _papers(6, 150, 0.02, 256, 40),
    "toy": Configuration("simhash", 8, 4, 0.4, 16, 5e-2, 20, dim=8, groups=1, update_every=None),
}


def _lsh_with_tail(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    # Half of the candidates found by hashing and summed as they are, half drawn from the rest.
    half = max(1, num_sampled // 2)
    head = configuration.lsh("embedding", half, near="logit", fill=None)
    return samplers.with_tail(head, samplers.log_uniform(half, num_groups=configuration.groups)), losses.css


METHODS: dict[MethodName, Callable[[Configuration, int], tuple[Sampler, Loss]]] = {
    "top_k": lambda configuration, number: (samplers.top_k(_TOP_K), losses.subset_softmax),
    # The other classes are left out of the softmax, uncorrected: the paper's form.
    "lsh_embedding": lambda configuration, number: (configuration.lsh("embedding", number), losses.subset_softmax),
    "lsh_label": lambda configuration, number: (configuration.lsh("label", number), losses.subset_softmax),
    "frequency": lambda configuration, number: (samplers.unigram(number, smoothing=1.0), losses.sampled_softmax),
    "sampled_softmax": lambda configuration, number: (samplers.log_uniform(number), losses.sampled_softmax),
    "nce": lambda configuration, number: (samplers.log_uniform(number), LOSSES["nce"]),
    # Not the paper's: near the largest logits instead of the closest vectors, and corrected for the classes left out.
    "lsh_logit": lambda configuration, number: (configuration.lsh("embedding", number, near="logit"), losses.css),
    "lsh_logit_with_tail": _lsh_with_tail,
}


@dataclasses.dataclass(frozen=True)
class OnDataset(common.Settings):
    """Settings of the studies on a data set."""

    config: Name = "python-stdlib"
    """Data set and hyperparameters."""
    dataset: str | None = None
    """Folder with the files of the data set, in the Extreme Classification Repository's text format; python-stdlib and
    toy, the choice of --quick, need none."""
    epochs: common.Positive | None = None
    """Passes over the training set; by default those of the configuration, of --quick 100 steps at most."""

    QUICK: ClassVar = {"config": "toy"}

    @property
    def configuration(self) -> Configuration:
        """The hyperparameters."""
        found = CONFIGURATIONS[self.config]
        return found if self.epochs is None else dataclasses.replace(found, epochs=self.epochs)

    def load(self) -> data.Dataset:
        """The data set; ValueError where the folder is missing, or has nothing to train on or to measure with."""
        if self.config == "toy" and self.dataset is None:
            return toy()
        if self.dataset is None and self.config != "python-stdlib":
            raise ValueError(
                f"expected --dataset with the folder of {self.config}'s train and test files in the Extreme "
                "Classification Repository's text format, got none. Only python-stdlib and toy need no files."
            )
        dataset = data.load(self.where)
        train, test = len(dataset.train), len(dataset.test)
        if not train or not test:
            raise ValueError(f"expected training and test examples in {self.where}, got {train:,} and {test:,}.")
        for which, part in (("training", dataset.train), ("test", dataset.test)):
            if not part.labels.nnz:
                raise ValueError(
                    f"expected labels in {self.where}, got none in any of its {len(part):,} {which} examples."
                )
        return dataset

    @property
    def where(self) -> str:
        """The folder of the data set, or its name."""
        return self.config if self.dataset is None else self.dataset

    def batch_size(self, dataset: data.Dataset) -> int:
        """Examples per step: all, where there are fewer than the configuration's batch has."""
        return min(self.configuration.batch_size, len(dataset.train))

    def training(self, dataset: data.Dataset, **options: Any) -> common.Training:
        """Training on a data set with the hyperparameters; options are those of ``extreme.problem``."""
        of = self.configuration
        own = {name: getattr(of, name) for name in ("dim", "learning_rate", "epochs")}
        own |= {"batch_size": self.batch_size(dataset), "seed": self.seed}
        training = problem(dataset, **{**own, **options})
        short = self.quick and self.epochs in (None, self.QUICK.get("epochs"))
        return dataclasses.replace(training, num_steps=min(training.num_steps, _QUICK_STEPS)) if short else training

    def num_sampled(self, name: MethodName, dataset: data.Dataset, configuration: Configuration | None = None) -> int:
        """Slots of a candidate set of a method; ValueError where hash tables have too few."""
        configuration = self.configuration if configuration is None else configuration
        number = configuration.num_sampled(dataset.num_classes)
        if name.startswith("lsh") and number < _LEAST_SLOTS:
            raise ValueError(
                f"expected {_LEAST_SLOTS} candidates or more for {name}, got {number}, {configuration.sparsity:g} of "
                f"the {dataset.num_classes:,} classes of {self.where}: give data with more classes, or leave LSH out."
            )
        return number
