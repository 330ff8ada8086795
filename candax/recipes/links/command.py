"""`candax links`: which entity completes a triple, by ComplEx and others, beside simple baselines.

    candax links                                          (a graph of Python's standard library)
    candax links --dataset FOLDER --seeds 3               (train, valid and test: head<tab>relation<tab>tail)
    candax links --dataset FOLDER --methods complex distmult transe rotate

Expected on WN18RR (40,943 entities, 86,835 training triples) by the second command, filtered, both directions, unseen
entities kept, MRR / hits@10 of the test part: most frequent answers of the relation .026 / .044, what other relations
of the two entities say .371 / .392, ComplEx .479 / .561 (mean of three seeds) after 6 to 8 minutes per seed on 2 busy
cores, with 1 GB. DistMult .454 / .537, RotatE .468 / .531 and, with --dim 128, TransE .219 / .493 (three
seeds each). Published: ComplEx .475 / .547 and, of rank 2,000, about .48 / .57, DistMult .452 / .530, TransE .228 /
.520, RotatE .476 / .571.

Expected on the standard library (26,909 entities, 79,590 training triples) with ``--dim 128 --epochs 4`` on validation,
in half a minute: MRR .112, hits@10 .199; most frequent answers .048 / .091.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from candax import data, files, models
from candax.base import Sampler
from candax.data.graphs import Unknown
from candax.models.links import Product
from candax.recipes import common
from candax.recipes.common import comparing
from candax.recipes.common.catalog import LossName, SamplerName
from candax.recipes.common.study import kept_in
from candax.recipes.links import metrics
from candax.recipes.links.baselines import MostFrequentAnswer, OtherRelations
from candax.recipes.links.building import Regulariser, save_model, training_of
from candax.training import embed

MethodName: TypeAlias = Literal["complex", "distmult", "transe", "rotate", "full_softmax"]
_STDLIB = "python-stdlib"
_DROPPED = "dropped "
# Settings that choose rows of the table, and on which no model depends.
_CHOOSE = ("methods", "seeds")
# N3 is chosen for each graph in published work, too.
_OF_STDLIB = {"regularisation": 0.01}


class LinkMethod(NamedTuple):
    """A way to train.

    Attributes:
        product: how a relation changes an entity.
        distance: whether entities are compared by squared distance instead of inner product.
        full: whether all entities are candidates.
        defaults: of settings, where they differ from the recipe's.
    """

    product: Product = "complex"
    distance: bool = False
    full: bool = False
    defaults: Mapping[str, Any] = MappingProxyType({})

    def takes(self, dim: int) -> bool:
        """Whether there are vectors of so many coordinates, of which a complex number takes two."""
        return dim % 2 == 0 or self.product in ("elementwise", "sum")

    def of(self, settings: "LinksSettings") -> "LinksSettings":
        """The settings to train with: those that were given stay."""
        found = settings.unless_given(self.defaults)
        return dataclasses.replace(found, loss=None) if self.full else found


_TRANSE = {"scale": 0.1, "regulariser": "l2", "regularisation": 0.03, "dropout": 0.0}
_DISTMULT = {"regularisation": 0.05, "learning_rate": 0.6, "num_sampled": 4096, "dim": 768}
_ROTATE = {"regularisation": 1.2, "learning_rate": 0.5}
METHODS: dict[MethodName, LinkMethod] = {
    "complex": LinkMethod(),
    "distmult": LinkMethod("elementwise", defaults=_DISTMULT),
    "transe": LinkMethod("sum", distance=True, defaults=_TRANSE),
    "rotate": LinkMethod("rotation", distance=True, defaults=_ROTATE),
    "full_softmax": LinkMethod(full=True),
}


@dataclasses.dataclass(frozen=True)
class LinksSettings(common.Settings):
    """Trains link prediction; prints a table, writes results.json and links.png."""

    dataset: str = _STDLIB
    """python-stdlib, a file of tab-separated triples (head, relation, tail) to be split, or a folder with train.tsv,
    test.tsv and perhaps valid.tsv."""
    unknown: Unknown = "keep"
    """What to do with test triples of entities that the training file does not have: keep them (published figures are
    so; those of seen entities stand beside), drop them, or end with an error."""
    split: Literal["validation", "test"] = "test"
    """Which triples are asked for; settings are chosen on validation."""
    methods: tuple[MethodName, ...] = ("complex",)
    """What is trained: ComplEx, DistMult, TransE or RotatE, or ComplEx with all entities as candidates."""
    sampler: SamplerName = "uniform"
    """Sampler of the candidates; uniform draws distinct ones."""
    loss: LossName | None = "css"
    """Loss to train with; None: the full softmax."""
    num_sampled: common.Count = 1024
    """Candidates that a batch shares; 4096 for distmult unless given."""
    labels_too: bool = True
    """Whether heads and tails of the batch are candidates too, where the sampler's counts can be added to theirs."""
    smoothing: common.NotNegative = 0.2
    """Label smoothing: the part of the target that the candidates share; over all classes there is none."""
    regulariser: Regulariser = "n3"
    """Of the rows of each triple: the sum of cubes or of squares; l2 for transe unless given."""
    regularisation: common.NotNegative = 0.1
    """The weight of the regulariser, which every graph wants its own of. Unless given: 0.05 for distmult, 0.03 for
    transe, 1.2 for rotate, and for the others 0.01 with python-stdlib."""
    dropout: common.NotNegative = 0.2
    """The share of the coordinates of questions that are dropped in training; none for transe unless given."""
    dim: common.Count = 512
    """Coordinates of an entity's vector, of which a complex number takes two; 768 for distmult unless given."""
    scale: common.Positive = 1e-3
    """The standard deviation of initial values; 0.1 for transe unless given."""
    batch_size: common.Count = 512
    """Questions per step, two for each triple."""
    epochs: common.Positive = 16.0
    """Passes over the triples."""
    learning_rate: common.Positive = 0.3
    """Learning rate of Adagrad, which falls linearly to 0; 0.6 for distmult and 0.5 for rotate unless given."""
    seeds: common.Count = 1
    """Trainings of each method, with seeds from --seed on; with several the table shows the lowest and the highest."""
    curve_questions: common.Count = 2000
    """Questions behind each point of the curve."""
    out: common.Out = Path("runs/links")
    """Folder for results.json, links.png and the models."""
    QUICK: ClassVar[Mapping[str, Any]] = {
        "epochs": 0.02, "dim": 16, "num_sampled": 32, "batch_size": 32, "curve_questions": 100,
    }  # fmt: skip
    UNLESS_GIVEN: ClassVar = (_OF_STDLIB, *(method.defaults for method in METHODS.values()))
    OPTIONS: ClassVar[Sequence[str]] = (
        "sampler", "loss", "num_sampled", "labels_too", "smoothing", "regulariser", "regularisation", "dropout", "dim",
        "scale", "batch_size", "epochs", "learning_rate", "seed",
    )  # fmt: skip

    def usual(self) -> dict[str, Any]:
        """See ``Settings``; with python-stdlib's own values where it is trained on."""
        return (_OF_STDLIB if self.dataset == _STDLIB else {}) | super().usual()

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")
        self.expect(self.batch_size % 2 == 0, "an even number (two questions for each triple)", "batch_size")
        for name in ("dropout", "smoothing"):
            self.expect(getattr(self, name) < 1, f"a {name} below 1", name)
        self.expect_sampled([None if METHODS[name].full else self.loss for name in self.methods])


@dataclasses.dataclass(frozen=True)
class Problem:
    """A graph and what is asked about it."""

    graph: data.Graph
    known: data.KnownAnswers
    asked: np.ndarray

    def figures(self, ranks_of: Callable[[Any], np.ndarray], asked: np.ndarray) -> dict[str, float]:
        """Of all questions, and ("dropped ...") of those whose entities and relation the training part has."""
        ranks = ranks_of(data.questions_in_order(asked, min(512, len(asked))))
        heads = asked[:, 1] >= self.graph.num_relations
        seen = self.seen(asked)
        found = metrics.link_figures(ranks, heads)
        dropped = metrics.link_figures(ranks[seen], heads[seen]) if seen.any() else {}
        return {**found, **{_DROPPED + name: value for name, value in dropped.items()}}

    def seen(self, asked: np.ndarray) -> np.ndarray:
        """Which questions are about entities and a relation that the training part has."""
        trained = np.bincount(self.graph.train[:, 1], minlength=self.graph.num_relations) > 0
        counts = self.graph.counts > 0
        return counts[asked[:, 0]] & counts[asked[:, 2]] & trained[asked[:, 1] % self.graph.num_relations]

    def measure(self, asked: np.ndarray, model: models.Classifier) -> dict[str, float]:
        """Figures of a model."""
        of_model = functools.partial(
            metrics.link_ranks, functools.partial(embed, model), model.head.whole(), known=self.known
        )
        return self.figures(of_model, asked)


@common.command
def links(settings: LinksSettings) -> common.Study:
    """Trains and measures, and writes its files."""
    for name in settings.methods:
        fits = METHODS[name].takes(settings.dim)
        settings.expect(fits, f"an even number for {name}, a complex number takes two", "dim")
    problem = problem_of(settings)
    graph, asked = problem.graph, problem.asked
    unseen = len(asked) // 2 - int(problem.seen(asked).sum()) // 2
    simple = {"most frequent answer": MostFrequentAnswer, "other relations": OtherRelations}
    figures = {name: functools.partial(_scored, scorer(graph), problem) for name, scorer in simple.items()}
    trained = functools.partial(_trained, problem)
    methods = comparing.rows_of(settings, figures, lambda name: METHODS[name].of(settings), trained)
    title = (
        f"{graph.name}: {graph.num_entities:,} entities, {graph.num_relations} relations, "
        f"{len(graph.train):,} training triples\n"
        f"{len(asked):,} questions of {settings.split}; {unseen:,} triples of entities that training has not"
    )
    return common.Study(
        title,
        methods,
        (
            common.Column("method", "method"),
            common.Column("MRR", "mrr", ".4f", spread=True),
            common.Column("hits@1", "hits@1", ".3f"),
            common.Column("hits@3", "hits@3", ".3f"),
            common.Column("hits@10", "hits@10", ".4f", spread=True),
            common.Column("seen alone: MRR", f"{_DROPPED}mrr", ".4f"),
            common.Column("hits@10", f"{_DROPPED}hits@10", ".4f"),
            common.Column("ms/step", "ms_per_step", ".1f"),
            common.Column("sec.", "seconds", ".0f"),
        ),
        (
            comparing.progress(
                "mrr", f"MRR of {settings.curve_questions:,} questions", simple="other relations", of="mrr"
            ),
        ),
        picture="links.png",
        may_change=_CHOOSE,
        data=files.digest_of(graph.train, graph.valid, graph.test),
        names=(graph.entity_names, graph.relation_names),
        notes=graph.notes,
        results=functools.partial(_results, settings, graph),
    )


def problem_of(settings: LinksSettings) -> Problem:
    """The graph of the settings, and the questions that they ask."""
    stdlib = settings.dataset == _STDLIB
    graph = data.python_graph() if stdlib else data.graph(settings.dataset, unknown=settings.unknown)
    asked = data.questions_of(graph.valid if settings.split == "validation" else graph.test, graph.num_relations)
    if not len(asked):
        why = (
            "A single file is split so that training has every entity and relation: triples of an entity that occurs "
            "with one other alone cannot be held out, and of few triples perhaps none is. Give a folder of train.tsv, "
            "valid.tsv and test.tsv."
        )
        if Path(settings.dataset).is_dir():
            file = "valid.tsv" if settings.split == "validation" else "test.tsv"
            why = f"There is no {file}, or --unknown drop left nothing of it."
        raise ValueError(
            f"expected triples for {settings.split} in {settings.dataset}, found none beside {len(graph.train):,} for "
            f"training. {why}"
        )
    return Problem(graph, data.KnownAnswers(graph), asked)


def _scored(scorer: Any, problem: Problem) -> dict[str, float]:
    return problem.figures(functools.partial(metrics.scored_ranks, scorer, known=problem.known), problem.asked)


def measured_training(
    settings: LinksSettings, problem: Problem, method: LinkMethod, seed: int
) -> tuple[common.Training, tuple[Sampler | None, Any]]:
    """How a model is trained and measured; and its sampler and loss."""
    some = problem.asked[np.sort(np.random.default_rng(0).permutation(len(problem.asked))[: settings.curve_questions])]
    measure, on_the_way = (functools.partial(problem.measure, asked) for asked in (problem.asked, some))
    return training_of(settings, method, problem.graph, seed, measure=measure, on_the_way=on_the_way)


def _trained(problem: Problem, settings: LinksSettings, name: MethodName, seed: int) -> dict[str, Any]:
    """Trains a model, or reads it from its folder if it has been trained already."""
    trained, pair = measured_training(settings, problem, METHODS[name], seed)
    graph = problem.graph
    # All parts: the curve is measured on those that are not trained on.
    parts = [trained.batches.identity, files.digest_of(graph.train, graph.valid, graph.test)]
    folder = common.model_folder(settings, name, seed, parts, without=_CHOOSE)
    model, figures = trained.train(*pair, f"{name}, seed {seed}", folder)
    path = save_model(folder, name, {**settings.options, "seed": seed}, problem.graph, model)
    return {**figures, **trained.measure(model), **kept_in(settings.out, path)}


def _results(settings: LinksSettings, graph: data.Graph, row: common.Row) -> list[dict[str, Any]]:
    """One row for each protocol."""
    about = {"task": "links", "data": graph.name, "split": settings.split, "method": row["method"]}
    about |= {name: row[name] for name in ("seed", "seconds") if name in row}
    names = ("mrr", *(f"hits@{k}" for k in metrics.KS))
    kept = {**about, "unseen": "kept", **{name: row[name] for name in names}}
    if f"{_DROPPED}mrr" not in row:
        return [kept]
    dropped = {**about, "unseen": "dropped", **{name: row[_DROPPED + name] for name in names}}
    return [dropped] if settings.unknown == "drop" else [kept, dropped]
