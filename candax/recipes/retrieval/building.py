"""The two towers of `candax retrieve` and what they are trained with, from its settings."""

from typing import Any

import numpy as np
from flax import nnx

import candax as cx
from candax import losses, models, samplers
from candax.base import Sampler
from candax.recipes.common.catalog import DISTINCT, LOSSES, SAMPLERS
from candax.recipes.retrieval.features import FeaturePart, ItemTower, Known
from candax.recipes.retrieval.tower import UserTower

_NOTHING = Known()


def two_towers(
    settings: Any,
    num_items: int,
    sampler: Sampler | None = None,
    loss: Any = losses.full_softmax,
    *,
    counts: np.ndarray | None = None,
    seed: int = 0,
    known: Known = _NOTHING,
) -> models.Classifier:
    """The users' tower before a head without biases, whose classes are the items.

    Args:
        settings: of `candax retrieve`.
        num_items: classes.
        sampler: of candidates.
        loss: to train with.
        counts: how often each item is a label.
        seed: of the initial values.
        known: about items and users.
    """
    rngs = nnx.Rngs(seed)
    if known.items is None:
        table = cx.Embed(num_items, settings.dim, embedding_init=nnx.initializers.normal(0.04), rngs=rngs)
        items: dict[str, Any] = {"table": table}
    else:
        items = {"vectors": ItemTower(num_items, known.items, settings.dim, rngs=rngs)}
    head = cx.Head(num_items, **items, sampler=sampler, loss=loss, counts=counts, biases=False, rngs=rngs)
    tower = UserTower(
        head,
        settings.hidden_dim,
        tied=not settings.separate_tables,
        recency=settings.recency,
        item_dropout=settings.item_dropout,
        dropout=settings.dropout,
        users=None if known.users is None else FeaturePart(known.users, settings.dim, rngs=rngs),
        rngs=rngs,
    )
    return models.Classifier(tower, head)


def pair_of(settings: Any, num_items: int) -> tuple[Sampler | None, Any]:
    """The sampler and the loss.

    Hard candidates are found by an index that follows the items; what is free beside them and the labels of the batch
    is drawn uniformly.
    """
    if settings.loss is None:
        return None, losses.full_softmax
    loss = losses.with_smoothing(LOSSES[settings.loss], settings.smoothing)
    number = min(settings.num_sampled, num_items)
    if settings.hard:
        index = samplers.ivf_index(
            num_centers=max(1, num_items // 256),
            hm_num=min(num_items, max(256, num_items // 10)),
            num_kept=min(num_items, max(256, num_items // 50)),
            codes="rotated",
            near="logit",
        )
        return samplers.grouped(index, num_sampled=number, k=min(settings.hard, num_items)), loss
    if settings.sampler == "in_batch":
        return samplers.in_batch(), loss
    drawn = {**SAMPLERS, **DISTINCT}[settings.sampler](number)
    return (samplers.mixture([samplers.in_batch(), drawn]) if settings.in_batch else drawn), loss
