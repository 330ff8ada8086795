"""The model of `candax links`, from settings and a ``LinkMethod``: how it is built, regularised, trained and saved."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

import candax as cx
from candax import data, losses, models
from candax.alike import made_once
from candax.base import Sampler
from candax.models.links import LinkEncoder, NearEntities
from candax.recipes import common
from candax.recipes.common import finished
from candax.recipes.common.catalog import DISTINCT, LOSSES, SAMPLERS, and_labels, for_computed
from candax.rows import lookup

Regulariser: TypeAlias = Literal["n3", "l2"]
_POWERS = {"n3": 3, "l2": 2}


def training_of(
    settings: Any, method: Any, graph: data.Graph, seed: int, **options: Any
) -> tuple[common.Training, tuple[Sampler | None, Any]]:
    """How a model is trained, with ``options`` of ``Training``, or without anything measured; its sampler and loss."""
    batches = data.QuestionBatches(graph, min(settings.batch_size, 2 * len(graph.train)), seed)
    num_steps = max(1, round(settings.epochs * batches.batches_per_epoch))

    def make(sampler: Sampler | None, loss: Any) -> tuple[models.Classifier, cx.Optimizer]:
        model = link_model_of(settings, method, graph, sampler, loss, seed=seed)
        return model, cx.Optimizer(model, common.row_adagrad(settings.learning_rate, num_steps), seed=seed)

    trained = common.Training(
        make,
        batches,
        num_steps,
        measured_at=(0.1, 0.25, 0.5, 0.75, 1.0),
        loss_fn=regularised(settings.regulariser, settings.regularisation),
        **{"measure": lambda model: {}, **options},
    )
    sampler, loss = _pair(settings)
    if method.distance and sampler is not None:
        sampler = for_computed(sampler, graph.num_entities)
    return trained, (sampler, loss)


@made_once
def regularised(
    regulariser: Regulariser, weight: float
) -> Callable[[models.Classifier, data.QuestionBatch], Float[Array, ""]]:
    """A loss for ``fit``: that of the head, and the mean over questions of a penalty on the rows of the triple.

    ``weight (|x|_p^p + |r|_p^p + |y|_p^p)`` of the rows of the entity, the relation and the answer, with p = 3 (N3) or
    2 (L2); complex coordinates count by their absolute values. There is no penalty on candidates.

    Args:
        regulariser: "n3" or "l2".
        weight: of the penalty.

    Returns:
        ``loss_fn(model, batch)``.

    Source: Lacroix, Usunier and Obozinski, Canonical Tensor Decomposition for Knowledge Base Completion (2018),
        section 4.
    """
    power = _POWERS[regulariser]

    def loss_fn(model: models.Classifier, batch: data.QuestionBatch) -> Float[Array, ""]:
        encoder: Any = model.encoder
        entity, relation = encoder.rows(batch)
        loss = model.head.loss(encoder.asked(entity, relation), batch.labels)
        if not weight:
            return loss
        answer = lookup(encoder.entities, batch.labels[:, 0])
        sizes = [encoder.sizes(entity), encoder.sizes(answer)]
        # Angles have no size.
        sizes += [encoder.sizes(relation)] if encoder.product != "rotation" else []
        return loss + weight * sum(jnp.sum(size**power) for size in sizes) / len(batch.labels)

    return loss_fn


def link_model_of(
    settings: Any,
    method: Any,
    graph: data.Graph,
    sampler: Sampler | None = None,
    loss: Any = losses.full_softmax,
    *,
    seed: int = 0,
) -> models.Classifier:
    """The encoder of a method, followed by a head without biases whose classes are the entities."""
    rngs = nnx.Rngs(seed)
    number, dim, scale = graph.num_entities, settings.dim, settings.scale
    near = table = None
    if method.distance:
        near = NearEntities(number, dim, scale=scale, rngs=rngs)
    else:
        table = cx.Embed(number, dim, embedding_init=nnx.initializers.normal(scale), rngs=rngs)
    head = cx.Head(
        number, table=table, vectors=near, sampler=sampler, loss=loss, counts=graph.counts, biases=False, rngs=rngs
    )
    kinds, dropout = 2 * graph.num_relations, settings.dropout
    encoder = LinkEncoder(head, kinds, product=method.product, scale=scale, dropout=dropout, rngs=rngs)
    return models.Classifier(encoder, head)


def _pair(settings: Any) -> tuple[Sampler | None, Any]:
    if settings.loss is None:
        return None, losses.full_softmax
    sampler = {**SAMPLERS, "uniform": DISTINCT["uniform"]}[settings.sampler](settings.num_sampled)
    if settings.labels_too and settings.sampler != "in_batch":
        sampler = and_labels(sampler)
    return sampler, losses.with_smoothing(LOSSES[settings.loss], settings.smoothing)


def save_model(
    folder: Path, method: str, options: Mapping[str, Any], graph: data.Graph, model: models.Classifier
) -> Path:
    """Writes a model and the triples that it was trained on into its folder; see ``common.finished``."""
    about = {"method": method, "options": dict(options), "data": graph.name}
    names = {"entities": graph.entity_names, "relations": graph.relation_names}
    extra = {"triples": graph.train}
    return finished.save(folder, "links", about, finished.weights_of(model), names=names, extra=extra)
