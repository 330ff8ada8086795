"""`candax retrieve`: which item a user takes next, by two towers and sampled losses, and by baselines.

    candax retrieve                                  (functions of the standard library, and the identifiers they use)
    candax retrieve --dataset Beauty.txt --seeds 3
    candax retrieve --dataset shop.csv --methods two_towers full_softmax in_batch by_order hard

The users' tower reads the bag of the history and does not know its order, except with ``by_order``; the items' tower is
the head's table. As in `candax sequences`, each user's last item is to be predicted, after training on all items
before it (``--split validation``: the one before the last, after training on all before that).

Expected on purchases of beauty products (Beauty.txt of S3-Rec: 22,363 users, 12,101 items), items of the history left
out of the ranking, recall@10 / nDCG@10: most popular .013 / .006, item neighbours without order .064 / .038, the two
towers without order .087 / .050 (three seeds, 77 to 84 s on one core, 1.3 GB), through IVF-BQ recall@10 .086.
Sequential neighbours, which know the order, have .085 / .054: the towers are level in recall and .004 below in nDCG.
By order (``--methods by_order``) the towers have .100 / .059.
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from candax import models
from candax.base import Sampler
from candax.recipes import common
from candax.recipes.common.catalog import SamplerName
from candax.recipes.common.study import kept_in
from candax.recipes.retrieval.building import TASK, pair_of, save_towers, two_towers
from candax.recipes.retrieval.features import NOTHING, Known, read_features
from candax.recipes.retrieval.scoring import indexed_figures, tower_scores
from candax.recipes.sequences import neighbours, next_item
from candax.recipes.sequences.files import Sequences, load, ranges
from candax.recipes.sequences.scoring import Scorer

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
_NOT_OF_MODEL = (*next_item.CHOOSE, "item_features", "user_features")


@dataclasses.dataclass(frozen=True)
class RetrieveSettings(next_item.NextItemSettings):
    """Trains two towers on what users have taken; prints a table, writes results.json and retrieve.png."""

    item_features: Path | None = None
    """File of item features, separated by tabs: a header line, then per line an id and columns of text or numbers."""
    user_features: Path | None = None
    """File of user features, in the same format as --item-features."""
    methods: tuple[MethodName, ...] = ("two_towers",)
    """What is trained: two_towers, the recipe, or a variant: with all items as candidates (full_softmax), only items of
    the batch (in_batch), more weight on recent items (by_order), or hard candidates from an index (hard)."""
    sampler: SamplerName = "uniform"
    """Where candidates come from; uniform draws distinct ones, and with --no-in-batch log_uniform and unigram do."""
    in_batch: bool = True
    """Whether the labels of the batch are candidates too, corrected for their frequency, where the sampler's counts can
    be added to theirs: it is so with uniform, log_uniform, unigram and learned_unigram; others stay alone."""
    hard: common.NonNegative = 0
    """If above 0, candidates are this many of each user's best items, found by an index, the labels of the batch, and
    uniform draws up to ``num_sampled``; ``sampler`` is then not used."""
    hidden_dim: common.Count = 256
    """Width of the users' hidden layer."""
    separate_tables: bool = False
    """Whether histories are read from a table of their own instead of the items' table."""
    recency: common.Share = 1.0
    """Weight of an item of the history: this number to the power of the item's age; 1: order does not count."""
    out: common.Out = Path("runs/retrieve")
    """Folder for results.json, retrieve.png and the models."""
    QUICK: ClassVar[Mapping[str, Any]] = {**next_item.NextItemSettings.QUICK, "hidden_dim": 16}
    METHODS: ClassVar = METHODS
    UNLESS_GIVEN: ClassVar = tuple(METHODS.values())
    OPTIONS: ClassVar[Sequence[str]] = (
        "sampler", "in_batch", "hard", "loss", "num_sampled", "smoothing", "dim", "hidden_dim", "separate_tables",
        "recency", "item_dropout", "dropout", "length", "num_rows", "epochs", "learning_rate", "decay", "seed",
    )  # fmt: skip

    def ready(self) -> "RetrieveSettings":
        """See ``Settings``; options of one model that does not read ``hard`` are no mistake, where it is loaded."""
        settings = super().ready()
        if not settings.hard:
            return settings
        drawing = [changes for changes in settings.changes() if changes.get("loss", settings.loss) is not None]
        why = "loss" if settings.loss is None else "methods"
        settings.expect(bool(drawing), "a training that draws candidates, for --hard", "hard", why)
        # Hard candidates come in place of a sampler's.
        settings.expect(settings.sampler == type(self).sampler, "either --hard or --sampler", "hard", "sampler")
        own = any("sampler" in changes for changes in drawing)
        settings.expect(not own, "methods without a sampler of their own, for --hard", "hard", "methods")
        return settings


@common.command
def retrieve(settings: RetrieveSettings) -> common.Study:
    """Trains and measures the models and writes the files."""
    loaded = load(settings.dataset, min_count=settings.min_count)
    found = dataclasses.replace(loaded, held_out=1 if settings.split == "test" else 2)
    known = _known(settings, found)
    simple: dict[str, Scorer] = {
        "most popular": neighbours.most_popular(found),
        "item neighbours": neighbours.ItemNeighbours(found),
        "sequential neighbours": neighbours.Neighbours(found),
    }
    return next_item.study(
        settings,
        found,
        next_item.rows_of(settings, found, simple, functools.partial(_trained, found, known), ks=KS),
        task=TASK,
        protocols=_PROTOCOLS,
        taken="taken",
        level="item neighbours",
        columns=(
            common.Column("recall@100", "recall@100", ".4f"),
            common.Column("by IVF-BQ: recall@10", "indexed recall@10", ".4f"),
        ),
        may_change=next_item.CHOOSE,
        data=(str(known.digest),),
    )


# By the prefix of the names of their figures.
_PROTOCOLS = {
    "": {"seen": "left_out", "search": "exact"},
    "ranked ": {"seen": "ranked", "search": "exact"},
    "indexed ": {"seen": "left_out", "search": "ivf_bq"},
}


def _known(settings: RetrieveSettings, found: Sequences) -> Known:
    """The features from their files, standardised by those of the items and users in training."""
    items = users = None
    if settings.item_features is not None:
        items = read_features(settings.item_features, found.item_names, found.counts() > 0, "items")
    if settings.user_features is not None:
        trained = found.training_ends - found.offsets[:-1] > 1
        users = read_features(settings.user_features, found.user_names, trained, "users")
    return Known(items, users)


def label_counts(found: Sequences) -> np.ndarray:
    """How often each item is to be predicted in training; a user's first item never is."""
    ends = found.training_ends
    places = ranges(np.minimum(found.offsets[:-1] + 1, ends), ends)
    return np.bincount(found.items[places], minlength=found.num_items)


def training_of(
    settings: RetrieveSettings, found: Sequences, seed: int, *, measured: bool = True, known: Known = NOTHING
) -> common.Training:
    """How the towers are trained; if ``measured``, with a curve of figures and a progress bar."""

    def model_of(sampler: Sampler | None, loss: Any) -> models.Classifier:
        counts = label_counts(found)
        return two_towers(settings, found.num_items, sampler, loss, counts=counts, seed=seed, known=known)

    scores_of = functools.partial(tower_scores, sequences=found, length=settings.length)
    training = next_item.training_of(settings, found, seed, model_of, scores_of, ks=KS, measured=measured)

    def both(model: models.Classifier) -> dict[str, Any]:
        asked = settings.questions(found)
        indexed = indexed_figures(model, found, asked, settings.length, seed=settings.seed, ks=_INDEXED)
        return {**training.measure(model), **indexed}

    return dataclasses.replace(training, measure=both)


def _trained(found: Sequences, known: Known, settings: RetrieveSettings, name: str, seed: int) -> dict[str, Any]:
    """The figures of a model, which is trained unless its folder has it already."""
    training = training_of(settings, found, seed, known=known)
    kept = common.model_folder(settings, name, seed, [training.batches.identity, known.digest], without=_NOT_OF_MODEL)
    model, figures = training.train(*pair_of(settings, found.num_items), f"{name}, seed {seed}", kept)
    path = save_towers(kept, {**settings.options, "seed": seed}, found, model, known=known)
    return {**figures, **training.measure(model), **kept_in(settings.out, path)}
