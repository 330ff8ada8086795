"""`candax sequences`: which item comes next, by a transformer and sampled losses, beside simple baselines.

    candax sequences                                 (identifiers of the standard library, in order of use)
    candax sequences --dataset Beauty.txt --seeds 3 --average 3
    candax sequences --dataset Beauty.txt --methods sasrec_bce sasrec_softmax full_softmax

Leave one out: each user's last item is asked for, after training on all before it (``--split validation``: the one
before the last, after training on all before that).

Expected on purchases of beauty products (Beauty.txt of S3-Rec: 22,363 users, 12,101 items), items of the history left
out of the ranking, recall@10 / nDCG@10: most popular .013 / .006, most frequent successor .076 / .050, nearest
neighbours .085 / .054, the transformer .104 / .063 (mean of three seeds, 2,272 steps, 148 s on a core, 1.3 GB), the
mean of three .109 / .067, with neighbours .112 / .069; at half the learning rate and without the item before the last
in training, one seed .082 / .049. A model of SASRec's size on one core: .0758 / .0409 with binary cross-entropy
(900 s) and .0907 / .0551 with sampled softmax (144 s), of three seeds. Published: SASRec .0605 / .0318 and .0921 /
.0531, eSASRec .0928 / .0523.
"""

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from candax import models
from candax.base import Sampler
from candax.models.transformer import Block
from candax.recipes import common
from candax.recipes.common import comparing
from candax.recipes.common.catalog import SamplerName
from candax.recipes.common.study import kept_in
from candax.recipes.sequences import neighbours, next_item
from candax.recipes.sequences.building import pair_of, sequence_model
from candax.recipes.sequences.files import Sequences, load
from candax.recipes.sequences.scoring import Scorer, evaluate, mean_of, mixed, model_scores

TASK = "sequences"
MethodName: TypeAlias = Literal["transformer", "full_softmax", "sasrec_bce", "sasrec_softmax", "sasrec_gbce"]
# A model of SASRec's size, without most of what the recipe adds to it; the number of its blocks is that of its authors.
# Binary cross-entropy, whose negatives have together the weight of one, has the 200 passes that were published.
_SASREC: dict[str, Any] = {
    "kind": "sasrec", "dim": 64, "num_heads": 1, "num_blocks": 2, "item_dropout": 0.0, "dropout": 0.2,
    "attention_dropout": 0.2, "smoothing": 0.0, "learning_rate": 1e-3, "epochs": 60.0,
}  # fmt: skip
# What a method changes in the settings.
METHODS: dict[MethodName, dict[str, Any]] = {
    "transformer": {},
    "full_softmax": {"loss": None},
    "sasrec_bce": {**_SASREC, "sampler": "uniform", "loss": "negative_sampling", "epochs": 200.0},
    "sasrec_softmax": {**_SASREC, "sampler": "uniform", "loss": "sampled_softmax", "num_sampled": 256},
    "sasrec_gbce": {**_SASREC, "sampler": "uniform", "loss": "gbce", "num_sampled": 256},
}

# Settings that choose rows of the table, and on which no model depends.
_CHOOSE = (*next_item.CHOOSE, "average")


@dataclasses.dataclass(frozen=True)
class SequencesSettings(next_item.NextItemSettings):
    """Trains transformers on sequences of items; prints a table, writes results.json and sequences.png."""

    train_on_validation: bool = True
    """Whether the item before the last is trained on where the last is asked for; as a part of the history it is read
    in any case. Compare figures within one of the two only."""
    methods: tuple[MethodName, ...] = ("transformer",)
    """What is trained: the recipe, the same with all items as candidates, or SASRec as published."""
    sampler: SamplerName = "unigram"
    """Sampler of the candidates."""
    power: common.NotNegative = 0.5
    """The power of the frequencies by which the sampler unigram draws."""
    kind: Block = "ligr"
    """Which transformer blocks: gated ones (ligr) or those of SASRec."""
    num_blocks: common.Count = 1
    """Number of blocks, one after the other."""
    num_heads: common.Count = 2
    """Number of heads of the attention."""
    attention_dropout: common.NotNegative = 0.2
    """The share of the attention's weights that are dropped in training."""
    learning_rate: common.Positive = 4e-3
    """Learning rate of Adam after a warm-up; it then falls to 0 along a cosine."""
    average: common.NonNegative = 0
    """Adds rows: the mean of this many models of the first method, alone and with neighbours."""
    neighbours: common.NotNegative = 1.0
    """The weight of neighbours beside the mean of models; 0: no such row."""
    out: common.Out = Path("runs/sequences")
    """Folder for results.json, sequences.png and the models."""
    SHARES: ClassVar[Sequence[str]] = (*next_item.NextItemSettings.SHARES, "attention_dropout")
    METHODS: ClassVar = METHODS
    UNLESS_GIVEN: ClassVar = tuple(METHODS.values())
    OPTIONS: ClassVar[Sequence[str]] = (
        "sampler", "loss", "num_sampled", "power", "smoothing", "kind", "num_blocks", "num_heads", "dim",
        "item_dropout", "dropout", "attention_dropout", "length", "num_rows", "epochs", "learning_rate", "decay",
        "seed",
    )  # fmt: skip

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        for name in self.methods:
            of = self.of(name)
            fits = of.dim % of.num_heads == 0
            of.expect(fits, f"as many coordinates as the heads of {name} divide", "dim", "num_heads")


@common.command
def sequences(settings: SequencesSettings) -> common.Study:
    """Trains and measures, and writes its files."""
    found = sequences_of(settings)
    near = neighbours.Neighbours(found)
    simple: dict[str, Scorer] = {
        "most popular": neighbours.most_popular(found),
        "most frequent successor": neighbours.most_frequent_successor(found),
        "nearest neighbours": near,
    }
    rows = next_item.rows_of(settings, found, simple, functools.partial(_trained, found))
    if settings.average:
        name = settings.methods[0]
        means = {f"mean of {settings.average}": 0.0}
        if settings.neighbours:
            means[f"mean of {settings.average} and neighbours"] = settings.neighbours
        for mean, weight in means.items():
            label = {"method": mean, "of": name}
            rows.append(comparing.row(label, _averaged, settings.of(name), found, name, near, weight))
    return next_item.study(
        settings,
        found,
        rows,
        task=TASK,
        protocols=_PROTOCOLS,
        taken="in order",
        level="nearest neighbours",
        may_change=_CHOOSE,
    )


def sequences_of(settings: SequencesSettings) -> Sequences:
    """The sequences, of which the settings say what is held out."""
    held_out = 1 if settings.split == "test" and settings.train_on_validation else 2
    return dataclasses.replace(load(settings.dataset, min_count=settings.min_count), held_out=held_out)


# By how the names of their figures begin.
_PROTOCOLS = {"": {"seen": "left_out"}, "ranked ": {"seen": "ranked"}}


def training_of(settings: SequencesSettings, found: Sequences, seed: int, *, measured: bool = True) -> common.Training:
    """How a model is trained; what is ``measured`` is so on the way too."""

    def model_of(sampler: Sampler | None, loss: Any) -> models.Classifier:
        return sequence_model(settings, found.num_items, sampler, loss, counts=found.counts(), seed=seed)

    scores_of = functools.partial(model_scores, sequences=found, length=settings.length)
    return next_item.training_of(settings, found, seed, model_of, scores_of, measured=measured)


def _train(
    settings: SequencesSettings, found: Sequences, name: str, seed: int
) -> tuple[models.Classifier, dict[str, Any], common.Training, Path]:
    """A model, from its folder if it has been trained already; and its file."""
    training = training_of(settings, found, seed)
    # Neighbours stand beside the models, which are the same with any weight of them.
    of_model = dataclasses.replace(settings, neighbours=SequencesSettings.neighbours)
    folder = common.model_folder(of_model, name, seed, training.batches.identity, without=_CHOOSE)
    model, figures = training.train(*pair_of(settings), f"{name}, seed {seed}", folder)
    path = next_item.save_model(folder, TASK, {**settings.options, "seed": seed}, found, model)
    return model, figures, training, path


def _trained(found: Sequences, settings: SequencesSettings, name: str, seed: int) -> dict[str, Any]:
    model, figures, training, path = _train(settings, found, name, seed)
    return {**figures, **training.measure(model), **kept_in(settings.out, path)}


def _averaged(settings: SequencesSettings, found: Sequences, name: str, near: Scorer, weight: float) -> dict[str, Any]:
    trained = [_train(settings, found, name, settings.seed + number) for number in range(settings.average)]
    scorer = mean_of([model_scores(model, found, length=settings.length) for model, *_ in trained])
    if weight:
        scorer = mixed(scorer, near, weight)
    figures = evaluate(scorer, found, settings.questions(found))
    seconds = sum(figures["seconds"] for _, figures, *_ in trained)
    return {**figures, "seconds": seconds, **kept_in(settings.out, *(path for *_, path in trained))}
