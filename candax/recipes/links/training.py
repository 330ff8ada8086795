"""The loss of a link recipe: that of the head and a regulariser on the rows of the triple; and its candidates."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax.numpy as jnp
from jaxtyping import Array, Float

from candax import models
from candax.alike import made_once
from candax.data import QuestionBatch
from candax.rows import lookup

Regulariser: TypeAlias = Literal["n3", "l2"]
_POWERS = {"n3": 3, "l2": 2}


@made_once
def regularised(
    regulariser: Regulariser, weight: float
) -> Callable[[models.Classifier, QuestionBatch], Float[Array, ""]]:
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
