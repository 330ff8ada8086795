"""`candax retrieve`: which item a user takes next, by two towers and sampled losses, beside what needs no training.

    candax retrieve                                  (functions of the standard library, and the identifiers they use)
    candax retrieve --dataset Beauty.txt --seeds 3
    candax retrieve --dataset shop.csv --methods two_towers full_softmax in_batch by_order hard

The users' tower reads the bag of the history and does not know its order, except with ``by_order``; the items' tower is
the head's table. Leave one out, as in `candax sequences`: each user's last item is asked for, after training on all
before it (``--split validation``: the one before the last, after training on all before that).

Expected on purchases of beauty products (Beauty.txt of S3-Rec: 22,363 users, 12,101 items), items of the history left
out of the ranking, recall@10 / nDCG@10: most popular .013 / .006, item neighbours without order .064 / .038, the two
towers without order .086 / .049 (two seeds, 163 and 224 s on two busy cores, 1.3 GB), through IVF-BQ recall@10 .085.
Sequential neighbours, which know the order, have .085 / .054: the towers are level in recall and .005 below in nDCG.
"""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

import candax as cx
from candax import files, models
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.retrieval.batches import TowerBatches
from candax.recipes.retrieval.building import pair_of, two_towers
from candax.recipes.retrieval.features import Known, read_features
from candax.recipes.retrieval.neighbours import ItemNeighbours
from candax.recipes.retrieval.saving import TASK, save_model
from candax.recipes.retrieval.scoring import indexed_figures, tower_scores
from candax.recipes.sequences import neighbours
from candax.recipes.sequences.files import STDLIB, Questions, Sequences, load, ranges
from candax.recipes.sequences.packing import PackedBatches
from candax.recipes.sequences.scoring import Scorer, evaluate
from candax.training import averaged_model

MethodName: TypeAlias = Literal["two_towers", "full_softmax", "in_batch", "by_order", "hard"]
# What a method changes in the settings.
METHODS: dict[MethodName, dict[str, Any]] = {
    "two_towers": {},
    "full_softmax": {"loss": None},
    "in_batch": {"sampler": "in_batch"},
    "by_order": {"recency": 0.8},
    "hard": {"hard": 8},
}
KS = (5, 10, 20, 100)
_INDEXED = (10, 100)
# Settings that choose rows of the table, and of which no model depends.
_CHOOSE = ("methods", "seeds")
_NOT_OF_MODEL = (*_CHOOSE, "item_features", "user_features")
_NOTHING = Known()


@dataclasses.dataclass(frozen=True)
class RetrieveSettings(common.Settings):
    """Trains two towers on what users have taken; prints a table, writes results.json and retrieve.png."""

    dataset: str = STDLIB
    """python-stdlib, or a file: "user item item ..." lines, "user,item[,time]" lines, or the same parted by tabs."""
    item_features: Path | None = None
    """File of what is known about items: a header line, then ids and columns of text or numbers, parted by tabs."""
    user_features: Path | None = None
    """The same about users."""
    split: Literal["validation", "test"] = "test"
    """What is asked for: the last item, or, to choose settings, the one before it."""
    methods: tuple[MethodName, ...] = ("two_towers",)
    """What is trained: the recipe, the same with all items as candidates, with those of the batch alone, with recent
    items weighing more, or with hard candidates from an index."""
    sampler: SamplerName = "uniform"
    """Of candidates; those of uniform, log_uniform and unigram are distinct."""
    in_batch: bool = True
    """Whether the labels of the batch are candidates too, corrected for their frequency."""
    hard: common.NonNegative = 0
    """So many of each user's best items, found by an index, are candidates: instead of ``sampler``, with the labels of
    the batch and uniform ones in what is left of ``num_sampled``."""
    loss: LossName | None = "css"
    """To train with."""
    num_sampled: common.Count = 1024
    """Candidates that a batch shares, besides its labels."""
    smoothing: common.NotNegative = 0.2
    """The part of the target that the sampled items share."""
    dim: common.Count = 128
    """Coordinates of users and items."""
    hidden_dim: common.Count = 256
    """Width of the users' hidden layer."""
    separate_tables: bool = False
    """Whether histories are read from a table of their own instead of the items' one."""
    recency: common.Share = 1.0
    """An item of the history weighs this to the power of its age; 1: no order."""
    item_dropout: common.NotNegative = 0.3
    """The share of items that are not read in training."""
    dropout: common.NotNegative = 0.4
    """Of coordinates."""
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
    min_count: common.Count = 1
    """Items that occur less often are left out."""
    users: common.Count = 25_000
    """The most users that are asked, a random part where there are more."""
    curve_users: common.Count = 2000
    """Users behind each point of the curve."""
    out: common.Out = Path("runs/retrieve")
    """Folder for results.json, retrieve.png and the models."""
    QUICK: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.02, "dim": 16, "hidden_dim": 16, "num_sampled": 32, "num_rows": 4, "length": 16, "curve_users": 100,
        "users": 1000,
    }  # fmt: skip

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")
        for name in ("item_dropout", "dropout", "smoothing", "decay"):
            self.expect(getattr(self, name) < 1, f"a {name.replace('_', '-')} below 1", name)


def retrieve(settings: RetrieveSettings) -> list[common.Row]:
    """Trains and measures, and writes its files; returns the rows of the table."""
    settings = settings.ready()
    common.writable_folder(settings.out)
    loaded = load(settings.dataset, min_count=settings.min_count)
    found = dataclasses.replace(loaded, held_out=1 if settings.split == "test" else 2)
    known = _known(settings, found)
    simple: dict[str, Scorer] = {
        "most popular": neighbours.MostPopular(found),
        "item neighbours": ItemNeighbours(found),
        "sequential neighbours": neighbours.Neighbours(found, both_ways=False),
    }
    methods = [
        common.Method({"method": name}, functools.partial(_measured, scorer, settings, found))
        for name, scorer in simple.items()
    ]
    for name in settings.methods:
        chosen = dataclasses.replace(settings, **METHODS[name])
        methods += [
            common.Method({"method": name, "seed": seed}, functools.partial(_trained, chosen, found, known, name, seed))
            for seed in range(settings.seed, settings.seed + settings.seeds)
        ]
    study = common.Study(
        f"{found.name}: next of {found.num_items:,} items, {len(found.lengths):,} users, {len(found.items):,} items "
        f"taken, {settings.split}",
        methods,
        (
            common.Column("method", "method"),
            common.Column("recall@10", "recall@10", ".4f", spread=True),
            common.Column("nDCG@10", "ndcg@10", ".4f", spread=True),
            common.Column("recall@100", "recall@100", ".4f"),
            common.Column("by IVF-BQ: recall@10", "indexed recall@10", ".4f"),
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
                    common.level("item neighbours", common.figure_of("item neighbours", "ndcg@10")),
                ],
                {"xlabel": "training time in seconds", "ylabel": f"nDCG@10 of {settings.curve_users:,} users"},
            ),
        ),
        picture="retrieve.png",
        may_change=_CHOOSE,
        data=f"{files.digest_of(found.items, found.offsets)} {known.digest}",
        results=functools.partial(_results, settings, found),
    )
    return common.run(study, settings)


def _known(settings: RetrieveSettings, found: Sequences) -> Known:
    """What the files of features say; it is put on a scale by what is trained on."""
    items = users = None
    if settings.item_features is not None:
        items = read_features(settings.item_features, found.item_names, found.counts() > 0, "items")
    if settings.user_features is not None:
        trained = found.training_ends - found.offsets[:-1] > 1
        users = read_features(settings.user_features, found.user_names, trained, "users")
    return Known(items, users)


def label_counts(found: Sequences) -> np.ndarray:
    """How often each item is to be predicted in training: a user's first one never is."""
    ends = found.training_ends
    places = ranges(np.minimum(found.offsets[:-1] + 1, ends), ends)
    return np.bincount(found.items[places], minlength=found.num_items)


def training_of(
    settings: RetrieveSettings, found: Sequences, seed: int, *, measured: bool = True, known: Known = _NOTHING
) -> common.Training:
    """How towers are trained; what is ``measured`` is so on the way too."""
    questions = _questions(settings, found)
    some = questions.some(settings.curve_users)
    kind = PackedBatches if known.users is None else TowerBatches
    batches = kind(found, settings.num_rows, settings.length, seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))

    def measure(questions: Questions, model: models.Classifier) -> dict[str, float]:
        return evaluate(tower_scores(model, found, settings.length), found, questions, ks=KS)

    def both(model: models.Classifier) -> dict[str, float]:
        return measure(questions, model) | indexed_figures(
            model, found, questions, settings.length, seed=settings.seed, ks=_INDEXED
        )

    return common.Training(
        functools.partial(_make, settings, found, known, num_steps, seed),
        batches,
        num_steps,
        measure=both,
        finish=averaged_model,
        on_the_way=functools.partial(measure, some) if measured else None,
        progress=measured,
        measured_at=(0.1, 0.25, 0.5, 0.75, 1.0),
    )


def _make(
    settings: RetrieveSettings,
    found: Sequences,
    known: Known,
    num_steps: int,
    seed: int,
    sampler: Sampler | None,
    loss: Any,
) -> tuple[models.Classifier, cx.Optimizer]:
    model = two_towers(settings, found.num_items, sampler, loss, counts=label_counts(found), seed=seed, known=known)
    tx = common.averaged_adam(settings.learning_rate, num_steps, settings.decay)
    return model, cx.Optimizer(model, tx, clip_norm=5.0, seed=seed)


def _questions(settings: RetrieveSettings, found: Sequences) -> Questions:
    return found.questions(settings.split).some(settings.users)


def _measured(scorer: Scorer, settings: RetrieveSettings, found: Sequences, folder: Path | None) -> dict[str, float]:
    del folder
    return evaluate(scorer, found, _questions(settings, found), ks=KS)


def _trained(
    settings: RetrieveSettings, found: Sequences, known: Known, name: str, seed: int, folder: Path | None
) -> dict[str, Any]:
    """A model, from its folder if it has been trained already."""
    del folder
    training = training_of(settings, found, seed, known=known)
    kept = common.model_folder(settings, name, seed, [training.batches.identity, known.digest], without=_NOT_OF_MODEL)
    model, figures = training.train(*pair_of(settings, found.num_items), f"{name}, seed {seed}", kept)
    save_model(kept, dataclasses.replace(settings, seed=seed), found, model, known=known)
    return {**figures, **training.measure(model)}


def _results(settings: RetrieveSettings, found: Sequences, row: common.Row) -> list[dict[str, Any]]:
    """One row for each protocol, and one for what the index finds."""
    about = {"task": TASK, "data": found.name, "split": settings.split, "method": row["method"]}
    about |= {name: row[name] for name in ("seed", "seconds") if name in row}
    kinds = (("", "left_out", "exact"), ("ranked ", "ranked", "exact"), ("indexed ", "left_out", "ivf_bq"))
    rows = []
    for start, seen, search in kinds:
        names = [name for name in row if "@" in name and (" " not in name if not start else name.startswith(start))]
        metrics = {name.removeprefix(start): row[name] for name in names if not name.endswith("_by_seed")}
        if metrics:
            rows.append({**about, "seen": seen, "search": search, **metrics})
    return rows
