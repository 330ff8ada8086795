"""The model of a link recipe, and its loss: that of the head and a regulariser on the rows of the triple."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

import candax as cx
from candax import models, samplers
from candax.base import Sampler
from candax.data import Graph, QuestionBatch
from candax.models.links import LinkEncoder, NearEntities, Product
from candax.rows import lookup

Regulariser: TypeAlias = Literal["n3", "l2"]
_POWERS = {"n3": 3, "l2": 2}


def link_model(
    graph: Graph,
    dim: int,
    *,
    product: Product,
    distance: bool,
    scale: float,
    dropout: float,
    sampler: Sampler | None,
    loss: Any,
    seed: int,
) -> models.Classifier:
    """A ``LinkEncoder`` before a head without biases, whose classes are the entities.

    Args:
        graph: of the entities.
        dim: coordinates.
        product: of the encoder.
        distance: whether entities are near by their squared distance instead of their inner product.
        scale: the standard deviation of initial values.
        dropout: of questions.
        sampler: of candidates.
        loss: to train with.
        seed: of all that is drawn.

    Returns:
        The model.
    """
    rngs = nnx.Rngs(seed)
    start = nnx.initializers.normal(scale)
    near = NearEntities(graph.num_entities, dim, scale=scale, rngs=rngs) if distance else None
    head = cx.Head(
        graph.num_entities,
        table=None if distance else cx.Embed(graph.num_entities, dim, embedding_init=start, rngs=rngs),
        vectors=near,
        sampler=sampler,
        loss=loss,
        counts=graph.counts,
        biases=False,
        rngs=rngs,
    )
    kinds = 2 * graph.num_relations
    return models.Classifier(LinkEncoder(head, kinds, product=product, scale=scale, dropout=dropout, rngs=rngs), head)


def and_labels(sampler: Sampler) -> Sampler:
    """Candidates of a sampler and the labels of the batch, with the sum of the expected counts.

    Where a sampler's expected counts depend on its draw there is no such sum: it stays alone.
    """
    joins = sampler.facts.draw_independent
    return samplers.mixture([samplers.in_batch(), sampler]) if joins else sampler


def regularised(
    regulariser: Regulariser, weight: float
) -> Callable[[models.Classifier, QuestionBatch], Float[Array, ""]]:
    """A loss for ``fit``: that of the head, and the mean over questions of a penalty on the rows of the triple.

    ``weight (|x|_p^p + |r|_p^p + |y|_p^p)`` of the rows of the entity, the relation and the answer, with p = 3 (N3) or
    2 (L2); complex coordinates count by their absolute values. Candidates have no part in it.

    Args:
        regulariser: "n3" or "l2".
        weight: of the penalty.

    Returns:
        ``loss_fn(model, batch)``.

    Source: Lacroix, Usunier and Obozinski, Canonical Tensor Decomposition for Knowledge Base Completion (2018),
        section 4.
    """
    power = _POWERS[regulariser]

    def loss_fn(model: models.Classifier, batch: QuestionBatch) -> Float[Array, ""]:
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
