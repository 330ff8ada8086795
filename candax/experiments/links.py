"""Link prediction: which entity completes a triple, by full softmax and by candidates.

    candax experiment links
    candax experiment links --dataset FOLDER

ComplEx with reciprocal relations (``candax.models.LinkEncoder``): the entities are the classes, one table for questions
and answers. Ranks are filtered, over all entities, in both directions.

The default data are a graph of Python's standard library: what imports, contains, defines, inherits or calls what.

Expected with the defaults (10 minutes on 2 busy cores), filtered mean reciprocal rank: in-batch and unigram .126,
in-batch and uniform .120, log_uniform .118, full softmax .118, in-batch .108; each 15 to 40 times quicker a step.

Expected on the triples of Open English WordNet (106,242 entities) with --full-epochs 0.5 (10 minutes on 2 cores),
filtered mean reciprocal rank: full softmax .033 after half an epoch and 320 s; after 3 epochs in-batch and unigram .076
(79 s, busy), in-batch .073 (14 s), log_uniform .073 (22 s).
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import optax
import tyro
from flax import nnx
from rich.console import Console

from candax import data, models, training
from candax.base import Sampler
from candax.data.graphs import Unknown
from candax.experiments import setup, side_by_side
from candax.models.links import Product

_STDLIB = "python-stdlib"


@dataclasses.dataclass(frozen=True)
class Links(side_by_side.Settings):
    """Trains link prediction by several methods; prints a table, writes results.json and links.png."""

    dataset: str = _STDLIB
    """python-stdlib, a file of tab-separated triples (head, relation, tail) to be split, or a folder with train.tsv,
    test.tsv and perhaps valid.tsv."""
    unknown: Unknown = "error"
    """What to do with test triples of entities that the training file does not have."""
    learning_rate: float = 3e-3
    """Of Adam; larger ones learn faster, and learn the training triples by heart."""
    product: Product = "complex"
    """How a relation changes an entity."""
    weight_decay: float = 0.0
    """Of the rows that a step uses, as a share a step of the learning rate."""
    on_valid: bool = False
    """Whether to measure on the validation part instead of the test part."""
    out: setup.Out = Path("runs/links")
    """Folder for results.json and links.png."""


def links(settings: Links) -> list[side_by_side.Outcome]:
    """Runs the experiment and writes its files; returns the rows of the table."""
    settings.check()
    if not settings.weight_decay >= 0:
        raise ValueError(f"expected --weight-decay of 0 or more, got {settings.weight_decay}.")
    out = setup.writable_folder(settings.out)
    graph = _load(settings)
    batches = data.QuestionBatches(graph, settings.batch_size, settings.seed)
    asked = data.questions_of(graph.valid if settings.on_valid else graph.test, graph.num_relations)
    if not len(asked):
        raise ValueError(f"expected triples to measure on, found none in {settings.dataset}.")
    some = asked[np.sort(np.random.default_rng(0).permutation(len(asked))[: settings.curve_examples])]
    known = data.KnownAnswers(graph)
    title = f"{graph.name}: links between {graph.num_entities:,} entities"
    Console().print(
        f"{title}; {graph.num_relations} relations, {len(graph.train):,} training triples, {len(asked):,} questions "
        f"to measure on; {batches.batches_per_epoch:,} batches of {settings.batch_size} an epoch"
    )

    def program_of(sampler: Sampler | None, loss: Any) -> training.Program:
        return _program(settings, graph, sampler, loss)

    def measure(questions: np.ndarray, program: training.Program, state: training.TrainState) -> dict[str, float]:
        return training.evaluate_links(
            lambda batch: program.embed(state, batch),
            program.classes(state),
            data.questions_in_order(questions, min(512, len(questions))),
            known,
            graph.num_relations,
        )

    outcomes = side_by_side.run(
        settings,
        graph.num_entities,
        program_of=program_of,
        batches=batches,
        on_the_way=lambda program, state: measure(some, program, state),
        at_end=lambda program, state: measure(asked, program, state),
        score="mrr",
        out=out,
    )
    columns = {"mrr": "MRR", "hits_at_1": "H@1", "hits_at_3": "H@3", "hits_at_10": "H@10"}
    sizes = {"entities": graph.num_entities, "relations": graph.num_relations, "train": len(graph.train)}
    sizes["questions"] = len(asked)
    side_by_side.report(title, outcomes, columns, settings, sizes, out, "links.png", "filtered mean reciprocal rank")
    return outcomes


def _load(settings: Links) -> data.Graph:
    if settings.dataset == _STDLIB:
        return data.python_graph()
    return data.graph(settings.dataset, unknown=settings.unknown)


def _program(settings: Links, graph: data.Graph, sampler: Sampler | None, loss: Any) -> training.Program:
    rngs = nnx.Rngs(settings.seed)
    head = models.Head(graph.num_entities, settings.dim, counts=graph.counts, rngs=rngs)
    encoder = models.LinkEncoder(head, 2 * graph.num_relations, product=settings.product, rngs=rngs)
    optimizer = optax.adamw(settings.learning_rate, weight_decay=settings.weight_decay)
    return training.build(models.Classifier(encoder, head), sampler=sampler, loss=loss, optimizer=optimizer)


if __name__ == "__main__":
    links(tyro.cli(Links))
