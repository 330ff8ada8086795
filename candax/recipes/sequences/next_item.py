"""What `candax sequences` and `candax retrieve` share: settings, the study, the training, and the model's file."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np

import candax as cx
from candax import models
from candax.base import Sampler
from candax.files import digest_of
from candax.recipes import common
from candax.recipes.common import comparing, finished
from candax.recipes.common.catalog import LossName
from candax.recipes.common.settings import option
from candax.recipes.sequences.files import STDLIB, Questions, Sequences
from candax.recipes.sequences.neighbours import seen_pairs
from candax.recipes.sequences.packing import PackedBatches, check_trainable
from candax.recipes.sequences.scoring import KS, Scorer, evaluate
from candax.training import averaged_model

# Settings that choose rows of the table, and on which no model depends.
CHOOSE = ("methods", "seeds")

# Settings that make a method what it is; others may be given for all methods together.
_OF_METHODS = ("sampler", "loss", "kind")
S = TypeVar("S", bound="NextItemSettings")


@dataclasses.dataclass(frozen=True)
class NextItemSettings(common.Settings):
    """Settings of the data, the training and the measures."""

    dataset: str = STDLIB
    """python-stdlib, or a file: "user item item ..." lines, "user,item[,time]" lines, or the latter with tabs."""
    split: Literal["validation", "test"] = "test"
    """Which item of each user to predict. test: the last; validation: the one before it, for choosing settings."""
    loss: LossName | None = "css"
    """Loss to train with; None: the full softmax."""
    num_sampled: common.Count = 1024
    """Candidates that a batch shares."""
    smoothing: common.NotNegative = 0.2
    """Label smoothing: the part of the target that the sampled items share; over all items there is none."""
    dim: common.Count = 128
    """Coordinates of an item's vector."""
    item_dropout: common.NotNegative = 0.3
    """The share of items that are not read in training."""
    dropout: common.NotNegative = 0.4
    """The share of coordinates that are dropped in training."""
    length: common.Count = 64
    """Items per row, into which histories are packed, and the most items that are read of a history."""
    num_rows: common.Count = 17
    """Rows per step."""
    epochs: common.Positive = 16.0
    """Passes over the users."""
    learning_rate: common.Positive = 2e-3
    """Learning rate of Adam after a warm-up; it then falls to 0 along a cosine."""
    decay: common.Share = 0.99
    """Decay of the moving average of the weights; the averages are what is measured."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on; with several the table shows the lowest and the highest."""
    min_count: common.Count = 1
    """Items that occur less often are left out."""
    users: common.Count = 25_000
    """The most users to measure on; if there are more, a random part of them."""
    curve_users: common.Count = 2000
    """Users behind each point of the curve."""
    QUICK: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.02, "dim": 16, "num_sampled": 32, "num_rows": 4, "length": 16, "curve_users": 100, "users": 1000,
    }  # fmt: skip
    # Names of the settings that must be below 1.
    SHARES: ClassVar[Sequence[str]] = ("item_dropout", "dropout", "smoothing", "decay")
    # What each method changes in the settings.
    METHODS: ClassVar[Mapping[Any, Mapping[str, Any]]] = {}

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(getattr(self, "methods", True)), "one method or more", "methods")
        for name in self.SHARES:
            self.expect(getattr(self, name) < 1, f"a {name.replace('_', '-')} below 1", name)
        for name in _OF_METHODS:
            own = [changes.get(name, ...) for changes in self.changes()]
            used = not own or ... in own or getattr(self, name) in own or name not in vars(self)["_given"]
            self.expect(used, f"a method that leaves {option(name)} open", name, "methods")
        self.expect_sampled([changes.get("loss", self.loss) for changes in self.changes() or [{}]])

    def changes(self) -> list[Mapping[str, Any]]:
        """What each of the methods changes in the settings."""
        return [self.METHODS[name] for name in getattr(self, "methods", ())]

    def of(self: S, name: str) -> S:
        """The settings of a method.

        What makes it this method is as it says. Its other values are for settings that are not given.
        """
        own = {key: value for key, value in self.METHODS[name].items() if key in _OF_METHODS}
        return dataclasses.replace(self.unless_given(self.METHODS[name]), **own)

    def questions(self, found: Sequences) -> Questions:
        """The questions to measure with."""
        return found.questions(self.split).some(self.users)


def rows_of(
    settings: Any,
    found: Sequences,
    simple: Mapping[str, Scorer],
    trained: Callable[[Any, str, int], dict[str, Any]],
    *,
    ks: Sequence[int] = KS,
) -> list[common.Method]:
    """See ``comparing.rows_of``; ``ks`` says which k to use."""
    check_trainable(found)  # now, not behind the baselines

    def measured(scorer: Scorer) -> dict[str, float]:
        return evaluate(scorer, found, settings.questions(found), ks=ks)

    figures = {name: functools.partial(measured, scorer) for name, scorer in simple.items()}
    return comparing.rows_of(settings, figures, settings.of, trained)


def study(
    settings: Any,
    found: Sequences,
    rows: Sequence[common.Method],
    *,
    task: str,
    protocols: Mapping[str, Mapping[str, str]],
    taken: str,
    level: str,
    may_change: Sequence[str],
    data: Sequence[str] = (),
    columns: Sequence[common.Column] = (),
) -> common.Study:
    """The study of a command.

    Args:
        settings: of the command.
        found: what is trained on and asked about.
        rows: of the table.
        task: the command's name.
        protocols: see ``_results_of``.
        taken: how users take items, in the title.
        level: the baseline that the picture shows as a line.
        may_change: see ``Study``.
        data: digests of what is trained on besides the sequences.
        columns: further ones.
    """
    title = (
        f"{found.name}: next of {found.num_items:,} items, {len(found.lengths):,} users, {len(found.items):,} items "
        f"{taken}, {settings.split}"
    )
    every = (
        common.Column("method", "method"),
        common.Column("recall@10", "recall@10", ".4f", spread=True),
        common.Column("nDCG@10", "ndcg@10", ".4f", spread=True),
        *columns,
        common.Column("seen ranked: recall@10", "ranked recall@10", ".4f"),
        common.Column("nDCG@10", "ranked ndcg@10", ".4f"),
        common.Column("coverage@10", "coverage@10", ".2f"),
        common.Column("ms/step", "ms_per_step", ".1f"),
        common.Column("sec.", "seconds", ".0f"),
    )
    panel = comparing.progress("ndcg@10", f"nDCG@10 of {settings.curve_users:,} users", simple=level, of="ndcg@10")
    return common.Study(
        title,
        rows,
        every,
        (panel,),
        picture=f"{task}.png",
        may_change=may_change,
        data=" ".join([digest_of(found.items, found.offsets), *data]),
        names=(found.item_names,),
        notes=(*found.notes, *_counted(found, settings.questions(found))),
        results=functools.partial(_results_of, settings, found, task, protocols),
    )


def _counted(found: Sequences, questions: Questions) -> list[str]:
    """What to know of the questions: who is asked none, and which answers no model, or none that leaves out, can give.

    Where users take items again, an answer that is in its history is ranked, by the usual rule.
    """
    rows, items = seen_pairs(found, questions)
    without, unseen = len(found.lengths) - len(questions), int(np.sum(found.counts()[questions.answers] == 0))
    again = int(np.sum(items == questions.answers[rows]))
    said = {
        f"{without:,} of {len(found.lengths):,} users have too few items to be asked about": without,
        f"{unseen:,} of {len(questions):,} answers are items that training has not: they count, and are hardly found": (
            unseen
        ),
        f"{again:,} of {len(questions):,} answers are in their own history: they stay in the ranking where other seen "
        "items are left out, and `candax predict` gives them with --keep-seen alone": again,
    }
    return [note for note, number in said.items() if number]


def _results_of(
    settings: Any, found: Sequences, task: str, protocols: Mapping[str, Mapping[str, str]], row: common.Row
) -> list[dict[str, Any]]:
    """The rows of results.json: one for each protocol, which is told by the prefix of its figures' names."""
    about = {"task": task, "data": found.name, "split": settings.split, "method": row["method"]}
    about |= {name: row[name] for name in ("of", "seed", "seconds") if name in row}
    rows = []
    for start, protocol in protocols.items():
        names = [name for name in row if "@" in name and name.rpartition(" ")[0] == start.strip()]
        if names:
            rows.append({**about, **protocol, **{name.removeprefix(start): row[name] for name in names}})
    return rows


def training_of(
    settings: Any,
    found: Sequences,
    seed: int,
    model_of: Callable[[Sampler | None, Any], models.Classifier],
    scores_of: Callable[[models.Classifier], Scorer],
    *,
    ks: Sequence[int] = KS,
    measured: bool = True,
) -> common.Training:
    """How a model is trained.

    Args:
        settings: of the command.
        found: what is trained on and asked about.
        seed: of the batches and of the candidates.
        model_of: makes the model from a sampler and a loss.
        scores_of: makes a scorer of all items from a model.
        ks: which k are measured.
        measured: whether there is a curve of figures, and a progress bar.
    """
    questions = settings.questions(found)
    batches = PackedBatches(found, settings.num_rows, settings.length, seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))

    def make(sampler: Sampler | None, loss: Any) -> tuple[models.Classifier, cx.Optimizer]:
        model = model_of(sampler, loss)
        tx = common.averaged_adam(settings.learning_rate, num_steps, settings.decay)
        return model, cx.Optimizer(model, tx, clip_norm=5.0, seed=seed)

    def measure(questions: Questions, model: models.Classifier) -> dict[str, float]:
        return evaluate(scores_of(model), found, questions, ks=ks)

    return common.Training(
        make,
        batches,
        num_steps,
        measure=functools.partial(measure, questions),
        finish=averaged_model,
        on_the_way=functools.partial(measure, questions.some(settings.curve_users)) if measured else None,
        progress=measured,
        measured_at=(0.1, 0.25, 0.5, 0.75, 1.0),
    )


def save_model(
    folder: Path,
    task: str,
    options: Mapping[str, Any],
    found: Sequences,
    model: models.Classifier,
    *,
    counts: np.ndarray | None = None,
    about: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> Path:
    """Writes a model into its folder; see ``common.finished``."""
    about = {"options": options, "data": found.name, **(about or {})}
    extra = {"counts": found.counts() if counts is None else counts, **(extra or {})}
    weights = finished.weights_of(model)
    return finished.save(folder, task, about, weights, names={"items": found.item_names}, extra=extra)
