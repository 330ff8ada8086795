"""Settings that `candax compare` and `candax train` share: the data, the model and how it is trained."""

import dataclasses
import functools
from typing import Any, ClassVar, Literal

import numpy as np

from candax import data
from candax.base import Loss, Sampler
from candax.data.python_stdlib import files_of
from candax.data.weighting import rarity_of
from candax.recipes import common
from candax.recipes.common.catalog import LOSSES, SAMPLERS, LossName, SamplerName
from candax.recipes.extreme import linear
from candax.recipes.extreme.arrays import in_range
from candax.recipes.extreme.problem import problem

# Consecutive examples that are held out together, one such run in ten: neighbours are often alike.
_RUN = 32
# The fewest training examples: some are held out from neighbours and propensities.
_LEAST = 10
STDLIB = "python-stdlib"
# Shares of the steps after which curves are measured: few, as each point costs time.
MEASURED_AT = (0.1, 0.25, 0.5, 1.0)
# Sizes for --quick.
QUICK = {"steps": 20, "dim": 16, "batch_size": 32, "num_sampled": 16}


def without_validation(dataset: data.Dataset) -> data.Dataset:
    """The data set with a tenth of its training examples, whole runs of them, in place of the test examples.

    Runs are files of python-stdlib, since its test examples are of other files, and of other data some examples.
    """
    runs = files_of(dataset) if dataset.name == STDLIB else []
    if len(runs) < 2:
        runs = np.array_split(np.arange(len(dataset.train)), max(2, len(dataset.train) // _RUN))
    held_out = set(np.random.default_rng(0).permutation(len(runs))[: max(1, len(runs) // 10)].tolist())
    parts = [
        np.concatenate([run for number, run in enumerate(runs) if (number in held_out) == wanted])
        for wanted in (False, True)
    ]
    train, test = (data.Examples(dataset.train.features[rows], dataset.train.labels[rows]) for rows in parts)
    return dataclasses.replace(dataset, train=train, test=test)


def _in_range(examples: data.Examples) -> data.Examples:
    """The same examples, if no value is too large or too small, so that their digest is found only once."""
    features = in_range(examples.features)
    return examples if features is examples.features else data.Examples(features, examples.labels)


@dataclasses.dataclass(frozen=True)
class Setting(common.Settings):
    """The data, the model and how it is trained."""

    dataset: str = STDLIB
    """python-stdlib, or a folder with train and test files in the Extreme Classification Repository's text format."""
    tf_idf: bool = False
    """Weight features by how rare they are; for data whose feature values are counts."""
    num_sampled: common.Count = 1024
    """Candidates that a batch shares."""
    top_k: common.Count = 64
    """Candidates of each example with the sampler top_k, whose step costs time in proportion to the classes."""
    epochs: common.Positive = 3.0
    """Passes over the training set."""
    steps: common.Count | None = None
    """Training steps, instead of epochs."""
    batch_size: common.Count = 256
    """Examples per step."""
    encoder: Literal["linear", "relu"] = "linear"
    """linear: starts from the data and ends better; relu: a hidden layer that starts at random."""
    dim: common.Count = 128
    """Width of the hidden layer and of the class vectors."""
    learning_rate: common.Positive | None = None
    """Learning rate. By default, with the linear encoder (Adagrad), 0.1 in `candax train` (0.2 for python-stdlib) and
    0.3 in `candax compare`; with relu (Adam) 0.005."""
    encoder_rate: common.NotNegative = 0.2
    """Learning rate of the linear encoder, as a share of the class vectors'; 0.03 in `candax train` for
    python-stdlib."""
    dropout: common.NotNegative = 0.0
    """Share of an embedding's coordinates that is left out at random in training; 0.3 in `candax train` for
    python-stdlib."""
    LINEAR_RATE: ClassVar[float]

    def usual(self) -> dict[str, Any]:
        """See ``Settings``; the steps of ``--quick`` do not take the place of epochs that are given."""
        usual = super().usual()
        if self.epochs != type(self).epochs:
            usual.pop("steps", None)
        return usual

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(self.dropout < 1, "a dropout below 1", "dropout")
        # Of scikit-learn, which the linear encoder starts from.
        self.expect(self.encoder == "relu" or self.seed < 2**32, "a seed below 2^32", "seed")

    def load(self) -> data.Dataset:
        """The data set."""
        dataset = data.load(self.dataset)
        self.check_sizes(dataset)
        dataset = data.tf_idf(dataset) if self.tf_idf else dataset
        return dataclasses.replace(dataset, train=_in_range(dataset.train), test=_in_range(dataset.test))

    def check_sizes(self, dataset: data.Dataset) -> None:
        """Raises ValueError for a data set that has nothing to measure on, or not enough to train on."""
        train, test = len(dataset.train), len(dataset.test)
        least = max(_LEAST, self.batch_size)
        if train < least or not test:
            a_batch, advice = (" (a batch)", " --batch-size gives the size of a batch.") if least > _LEAST else ("", "")
            raise ValueError(
                f"expected {least:,} training examples or more{a_batch}, and test examples in {self.dataset}; got "
                f"{train:,} and {test:,}.{advice}"
            )
        for which, part in (("training", dataset.train), ("test", dataset.test)):
            if not part.labels.nnz:
                raise ValueError(
                    f"expected labels in {self.dataset}, got none in any of its {len(part):,} {which} examples."
                )

    def rarity(self) -> np.ndarray | None:
        """The rarity of features, by which counts are weighted; None where they are not."""
        return rarity_of(data.load(self.dataset).train.features) if self.tf_idf else None

    def training(self, dataset: data.Dataset, *, new: bool = True, **options: Any) -> common.Training:
        """Training on a data set, with ``options`` of ``problem``; not ``new``: a checkpoint gives the values."""
        options = {"seed": self.seed, **options}
        training = problem(
            dataset,
            batch_size=self.batch_size,
            dim=self.dim,
            learning_rate=self.learning_rate or 5e-3,
            epochs=self.epochs,
            num_steps=self.steps,
            dropout=self.dropout,
            **options,
        )
        if self.encoder == "relu":
            return training
        rate, seed = self.learning_rate or self.LINEAR_RATE, options["seed"]
        # The same for all methods, and found when the first of them begins.
        bag = functools.cache(lambda: linear.directions(dataset, self.dim, seed)) if new else None
        told = dataset, self.dim, rate, training.num_steps, seed
        return dataclasses.replace(
            training,
            make=functools.partial(linear.make, *told, encoder_rate=self.encoder_rate, dropout=self.dropout, bag=bag),
        )

    def pair(self, sampler: SamplerName, loss: LossName) -> tuple[Sampler, Loss]:
        """A sampler and a loss by name."""
        number = min(self.top_k, self.num_sampled) if sampler == "top_k" else self.num_sampled
        return SAMPLERS[sampler](number), LOSSES[loss]


def notes_on(dataset: data.Dataset, *, tf_idf: bool) -> list[str]:
    """What to know of a data set: what cannot be learned or measured, and a setting that may be missing."""
    learned = np.bincount(dataset.train.labels.indices, minlength=dataset.num_classes) > 0
    asked = dataset.test.labels.indices
    unseen = int(np.sum(~learned[asked]))
    said = {f"{unseen:,} of {len(asked):,} labels in test are in no training example: they count as missed": unseen}
    for which, part in (("training", dataset.train), ("test", dataset.test)):
        for what, of in (("labels", part.labels), ("features", part.features)):
            without = int(np.sum(np.diff(of.indptr) == 0))
            then = {"labels": "left out of training and of figures", "features": "ranked by how frequent classes are"}
            said[f"{without:,} of {len(part):,} {which} examples have no {what}: {then[what]}"] = without
    values = dataset.train.features.data
    counts = not tf_idf and len(values) and values.max() > 1 and np.array_equal(values, np.round(values))
    said["values of features look like counts: try --tf-idf"] = int(counts)
    return [note for note, number in said.items() if number]
