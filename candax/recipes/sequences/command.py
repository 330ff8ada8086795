"""`candax sequences`: which item comes next, by a transformer and sampled losses, beside what needs no training.

    candax sequences                                 (identifiers of the standard library, in order of use)
    candax sequences --dataset Beauty.txt --seeds 3 --average 3
    candax sequences --dataset Beauty.txt --methods sasrec_bce sasrec_softmax full_softmax

Leave one out: each user's last item is asked for, after training on all before it (``--split validation``: the one
before the last, after training on all before that).

Expected on purchases of beauty products (Beauty.txt of S3-Rec: 22,363 users, 12,101 items), items of the history left
out of the ranking, recall@10 / nDCG@10: most popular .013 / .006, most frequent successor .076 / .050, nearest
neighbours .085 / .054, the transformer .097 / .059 (mean of three seeds, 2,272 steps each), the mean of three
.103 / .063; without the item before the last in training, one seed .082 / .049. Published: SASRec .0605 / .0318 with
binary cross-entropy and .0921 / .0531 with sampled softmax, eSASRec .0928 / .0523.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import candax as cx
from candax import files, models
from candax.base import Sampler
from candax.models.transformer import Block
from candax.recipes import common
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.sequences import neighbours
from candax.recipes.sequences.building import pair_of, sequence_model
from candax.recipes.sequences.files import STDLIB, Questions, Sequences, load
from candax.recipes.sequences.packing import PackedBatches
from candax.recipes.sequences.saving import save_model
from candax.recipes.sequences.scoring import Scorer, evaluate, mean_of, mixed, model_scores
from candax.training import averaged_model

MethodName: TypeAlias = Literal["transformer", "full_softmax", "sasrec_bce", "sasrec_softmax", "sasrec_gbce"]
SPLITS = ("validation", "test")
# SASRec as published, without what the recipe adds to it; the number of its blocks is that of its authors.
_SASREC: dict[str, Any] = {
    "kind": "sasrec", "dim": 64, "num_heads": 1, "num_blocks": 2, "item_dropout": 0.0, "dropout": 0.2,
    "attention_dropout": 0.2, "smoothing": 0.0, "learning_rate": 1e-3, "epochs": 60.0,
}  # fmt: skip
# What a method changes in the settings.
METHODS: dict[MethodName, dict[str, Any]] = {
    "transformer": {},
    "full_softmax": {"loss": None},
    "sasrec_bce": {**_SASREC, "sampler": "uniform", "loss": "negative_sampling"},
    "sasrec_softmax": {**_SASREC, "sampler": "uniform", "loss": "sampled_softmax", "num_sampled": 256},
    "sasrec_gbce": {**_SASREC, "sampler": "uniform", "loss": "gbce", "num_sampled": 256},
}

# Settings that choose rows of the table, and of which no model depends.
_CHOOSE = ("methods", "seeds", "average")


@dataclasses.dataclass(frozen=True)
class SequencesSettings(common.Settings):
    """Trains transformers on sequences of items; prints a table, writes results.json and sequences.png."""

    dataset: str = STDLIB
    """python-stdlib, or a file: "user item item ..." lines, "user,item[,time]" lines, or the same parted by tabs."""
    split: Literal["validation", "test"] = "test"
    """What is asked for: the last item, or, to choose settings, the one before it."""
    train_on_validation: bool = True
    """Whether the item before the last is trained on where the last is asked for; as a part of the history it is read
    in any case. Compare figures within one of the two only."""
    methods: tuple[MethodName, ...] = ("transformer",)
    """What is trained: the recipe, the same with all items as candidates, or SASRec as published."""
    sampler: SamplerName = "unigram"
    """Of candidates."""
    loss: LossName | None = "css"
    """To train with."""
    num_sampled: common.Count = 1024
    """Candidates that a batch shares."""
    power: common.NotNegative = 0.5
    """Of the frequencies by which unigram draws."""
    smoothing: common.NotNegative = 0.2
    """The part of the target that the sampled items share."""
    kind: Block = "ligr"
    """Of transformer blocks."""
    num_blocks: common.Count = 1
    """One after the other."""
    num_heads: common.Count = 2
    """Of the attention."""
    dim: common.Count = 128
    """Coordinates of items."""
    item_dropout: common.NotNegative = 0.3
    """The share of items that are not read in training."""
    dropout: common.NotNegative = 0.4
    """Of coordinates."""
    attention_dropout: common.NotNegative = 0.2
    """Of the attention's weights."""
    length: common.Count = 64
    """Items per row, into which users are packed, and the most that are read of a history."""
    num_rows: common.Count = 17
    """Rows per step."""
    epochs: common.Positive = 16.0
    """Passes over the users."""
    learning_rate: common.Positive = 2e-3
    """Of Adam, after a warm-up and before a cosine to 0."""
    decay: common.Share = 0.99
    """Of the average of the weights, which is what is measured."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on; from two on the table has the lowest and the highest."""
    average: common.NonNegative = 0
    """Further rows: the mean of so many models of the first method, alone and with neighbours."""
    neighbours: common.NotNegative = 1.0
    """The weight of neighbours beside the mean of models."""
    min_count: common.Count = 1
    """Items that occur less often are left out."""
    users: common.Count = 25_000
    """The most users that are asked, a random part where there are more."""
    curve_users: common.Count = 2000
    """Users behind each point of the curve."""
    out: common.Out = Path("runs/sequences")
    """Folder for results.json, sequences.png and the models."""
    QUICK: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.02, "dim": 16, "num_sampled": 32, "num_rows": 4, "length": 16, "curve_users": 100, "users": 1000,
    }  # fmt: skip

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")
        for name in ("item_dropout", "dropout", "attention_dropout", "smoothing", "decay"):
            self.expect(getattr(self, name) < 1, f"a {name.replace('_', '-')} below 1", name)


def sequences(settings: SequencesSettings) -> list[common.Row]:
    """Trains and measures, and writes its files; returns the rows of the table."""
    settings = settings.ready()
    common.writable_folder(settings.out)
    held_out = 1 if settings.split == "test" and settings.train_on_validation else 2
    found = dataclasses.replace(load(settings.dataset, min_count=settings.min_count), held_out=held_out)
    near = neighbours.Neighbours(found, both_ways=False)
    simple: dict[str, Scorer] = {
        "most popular": neighbours.MostPopular(found),
        "most frequent successor": neighbours.most_frequent_successor(found),
        "nearest neighbours": near,
    }
    seeds = range(settings.seed, settings.seed + settings.seeds)
    methods = [
        common.Method({"method": name}, functools.partial(_measured, scorer, settings, found))
        for name, scorer in simple.items()
    ]
    for name in settings.methods:
        chosen = dataclasses.replace(settings, **METHODS[name])
        methods += [
            common.Method({"method": name, "seed": seed}, functools.partial(_trained, chosen, found, name, seed))
            for seed in seeds
        ]
    if settings.average:
        name = settings.methods[0]
        chosen = dataclasses.replace(settings, **METHODS[name])
        for weight, beside in ((0.0, ""), (settings.neighbours, " and neighbours")):
            label = {"method": f"mean of {settings.average}{beside}"}
            methods.append(common.Method(label, functools.partial(_averaged, chosen, found, name, near, weight)))
    title = (
        f"{found.name}: next of {found.num_items:,} items, {len(found.lengths):,} users, {len(found.items):,} items "
        f"in order, {settings.split}"
    )
    study = common.Study(
        title,
        methods,
        (
            common.Column("method", "method"),
            common.Column("recall@10", "recall@10", ".4f", spread=True),
            common.Column("nDCG@10", "ndcg@10", ".4f", spread=True),
            common.Column("seen ranked: recall@10", "ranked recall@10", ".4f"),
            common.Column("nDCG@10", "ranked ndcg@10", ".4f"),
            common.Column("coverage@10", "coverage@10", ".2f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (
            common.Panel(
                [
                    common.curves("seconds", "ndcg@10", marker="."),
                    common.level("nearest neighbours", common.figure_of("nearest neighbours", "ndcg@10")),
                ],
                {"xlabel": "training time in seconds", "ylabel": f"nDCG@10 of {settings.curve_users:,} users"},
            ),
        ),
        picture="sequences.png",
        may_change=_CHOOSE,
        data=files.digest_of(found.items, found.offsets),
        results=functools.partial(_results, settings, found),
    )
    return common.run(study, settings)


def _measured(scorer: Scorer, settings: SequencesSettings, found: Sequences, folder: Path | None) -> dict[str, float]:
    del folder
    return evaluate(scorer, found, _questions(settings, found))


def _questions(settings: SequencesSettings, found: Sequences) -> Questions:
    return found.questions(settings.split).some(settings.users)


def training_of(settings: SequencesSettings, found: Sequences, seed: int, *, measured: bool = True) -> common.Training:
    """How a model is trained; what is ``measured`` is so on the way too."""
    questions = _questions(settings, found)
    some = questions.some(settings.curve_users)
    batches = PackedBatches(found, settings.num_rows, settings.length, seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))

    def measure(questions: Any, model: models.Classifier) -> dict[str, float]:
        return evaluate(model_scores(model, found, length=settings.length), found, questions)

    return common.Training(
        functools.partial(_make, settings, found, num_steps, seed),
        batches,
        num_steps,
        measure=functools.partial(measure, questions),
        finish=averaged_model,
        on_the_way=functools.partial(measure, some) if measured else None,
        progress=measured,
        measured_at=(0.1, 0.25, 0.5, 0.75, 1.0),
    )


def _make(
    settings: SequencesSettings, found: Sequences, num_steps: int, seed: int, sampler: Sampler | None, loss: Any
) -> tuple[models.Classifier, cx.Optimizer]:
    model = sequence_model(settings, found.num_items, sampler, loss, counts=found.counts(), seed=seed)
    tx = common.averaged_adam(settings.learning_rate, num_steps, settings.decay)
    return model, cx.Optimizer(model, tx, clip_norm=5.0, seed=seed)


def _train(
    settings: SequencesSettings, found: Sequences, name: str, seed: int
) -> tuple[models.Classifier, dict[str, Any], common.Training]:
    """A model, from its folder if it has been trained already."""
    training = training_of(settings, found, seed)
    folder = common.model_folder(settings, name, seed, training.batches.identity, without=_CHOOSE)
    sampler, loss = pair_of(settings)
    model, figures = training.train(sampler, loss, f"{name}, seed {seed}", folder)
    save_model(folder, dataclasses.replace(settings, seed=seed), found, model)
    return model, figures, training


def _trained(
    settings: SequencesSettings, found: Sequences, name: str, seed: int, folder: Path | None
) -> dict[str, Any]:
    del folder
    model, figures, training = _train(settings, found, name, seed)
    return {**figures, **training.measure(model)}


def _averaged(
    settings: SequencesSettings, found: Sequences, name: str, near: Scorer, weight: float, folder: Path | None
) -> dict[str, Any]:
    del folder
    trained = [_train(settings, found, name, settings.seed + number) for number in range(settings.average)]
    scorer = mean_of([model_scores(model, found, length=settings.length) for model, _, _ in trained])
    if weight:
        scorer = mixed(scorer, near, weight)
    figures = evaluate(scorer, found, _questions(settings, found))
    return {**figures, "seconds": sum(figures["seconds"] for _, figures, _ in trained)}


def _results(settings: SequencesSettings, found: Sequences, row: common.Row) -> list[dict[str, Any]]:
    """One row for each protocol."""
    about = {"task": "sequences", "data": found.name, "split": settings.split, "method": row["method"]}
    about |= {name: row[name] for name in ("seed", "seconds") if name in row}
    metrics = {name: value for name, value in row.items() if "@" in name}
    return [
        {**about, "seen": "left_out", **{name: of for name, of in metrics.items() if not name.startswith("ranked ")}},
        {
            **about,
            "seen": "ranked",
            **{name.removeprefix("ranked "): of for name, of in metrics.items() if name.startswith("ranked ")},
        },
    ]
