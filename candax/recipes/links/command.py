"""Link prediction: which entity completes a triple, by full softmax and by candidates.

    candax experiment links
    candax experiment links --dataset FOLDER

ComplEx with reciprocal relations (``candax.models.LinkEncoder``): the entities are the classes, one table for questions
and answers. Ranks are filtered, over all entities, in both directions.

The default data are a graph of Python's standard library: what imports, contains, defines, inherits or calls what.

Expected with the defaults (10 minutes on 2 busy cores), filtered mean reciprocal rank: in-batch and unigram .126,
in-batch and uniform .120, log_uniform .118, full softmax .118, in-batch .108; each 15 to 40 times quicker per step.

Expected on the triples of Open English WordNet (106,242 entities) with --full-epochs 0.5 (10 minutes on 2 cores),
filtered mean reciprocal rank: full softmax .033 after half an epoch and 320 s; after 3 epochs in-batch and unigram .076
(79 s, busy), in-batch .073 (14 s), log_uniform .073 (22 s).
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import optax
from flax import nnx

import candax as cx
from candax import data, models
from candax.base import Sampler
from candax.data.graphs import Unknown
from candax.models.links import Product
from candax.recipes import common
from candax.recipes.links.metrics import evaluate_links
from candax.training import embed

_STDLIB = "python-stdlib"


@dataclasses.dataclass(frozen=True)
class Links(common.Contest):
    """Trains link prediction by several methods; prints a table, writes results.json and links.png."""

    dataset: str = _STDLIB
    """python-stdlib, a file of tab-separated triples (head, relation, tail) to be split, or a folder with train.tsv,
    test.tsv and perhaps valid.tsv."""
    unknown: Unknown = "error"
    """What to do with test triples of entities that the training file does not have."""
    learning_rate: common.Positive = 3e-3
    """Of Adam; larger ones learn faster, and learn the training triples by heart."""
    product: Product = "complex"
    """How a relation changes an entity."""
    weight_decay: common.NotNegative = 0.0
    """Of the rows that a step uses, as a share of the learning rate per step."""
    on_valid: bool = False
    """Whether to measure on the validation part instead of the test part."""
    out: common.Out = Path("runs/links")
    """Folder for results.json and links.png."""
    QUICK: ClassVar = {**common.QUICK_CONTEST, "curve_examples": 200}


def links(settings: Links) -> list[common.Row]:
    """Runs the contest and writes its files; returns the rows of the table."""
    settings = settings.ready()
    common.writable_folder(settings.out)
    graph = _load(settings)
    asked = data.questions_of(graph.valid if settings.on_valid else graph.test, graph.num_relations)
    if not len(asked):
        raise ValueError(f"expected triples to measure on, found none in {settings.dataset}.")
    some = asked[np.sort(np.random.default_rng(0).permutation(len(asked))[: settings.curve_examples])]
    known = data.KnownAnswers(graph)

    def measure(model: models.Classifier, questions: np.ndarray = asked) -> dict[str, float]:
        in_order = data.questions_in_order(questions, min(512, len(questions)))
        return evaluate_links(
            functools.partial(embed, model), model.head.classes(), in_order, known, graph.num_relations
        )

    training = common.Training(
        functools.partial(_make, settings, graph),
        data.QuestionBatches(graph, settings.batch_size, settings.seed),
        num_steps=0,  # each method has its own
        measure=measure,
        on_the_way=lambda model: measure(model, some),
    )
    study = common.Study(
        f"{graph.name}: links between {graph.num_entities:,} entities, {graph.num_relations} relations, "
        f"{len(graph.train):,} training triples, {len(asked):,} questions",
        common.entrants(settings, training, graph.num_entities),
        common.contest_columns({"mrr": "MRR", "hits_at_1": "H@1", "hits_at_3": "H@3", "hits_at_10": "H@10"}),
        common.contest_panels("mrr", "filtered mean reciprocal rank"),
        picture="links.png",
        may_change=("methods",),
    )
    return common.run(study, settings)


def _load(settings: Links) -> data.Graph:
    if settings.dataset == _STDLIB:
        return data.python_graph()
    return data.graph(settings.dataset, unknown=settings.unknown)


def _make(
    settings: Links, graph: data.Graph, sampler: Sampler | None, loss: Any
) -> tuple[models.Classifier, cx.Optimizer]:
    rngs = nnx.Rngs(settings.seed)
    head = common.plain_head(graph.num_entities, settings.dim, graph.counts, seed=settings.seed, rngs=rngs)
    head.use(sampler, loss)
    encoder = models.LinkEncoder(head, 2 * graph.num_relations, product=settings.product, rngs=rngs)
    optimizer = optax.adamw(settings.learning_rate, weight_decay=settings.weight_decay)
    model = models.Classifier(encoder, head)
    return model, cx.Optimizer(model, optimizer, seed=settings.seed)
