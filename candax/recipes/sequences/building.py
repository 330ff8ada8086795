"""The model of `candax sequences` and what it is trained with, from its settings."""

import functools
from typing import Any

import numpy as np
from flax import nnx

import candax as cx
from candax import losses, models
from candax.base import Sampler
from candax.recipes.common.catalog import LOSSES, SAMPLERS, SamplerName


def sequence_model(
    settings: Any,
    num_items: int,
    sampler: Sampler | None = None,
    loss: Any = losses.full_softmax,
    *,
    counts: np.ndarray | None = None,
    seed: int = 0,
) -> models.Classifier:
    """The transformer before a head without biases, whose classes are the items that it reads."""
    rngs = nnx.Rngs(seed)
    table = cx.Embed(num_items, settings.dim, embedding_init=nnx.initializers.normal(0.04), rngs=rngs)
    head = cx.Head(num_items, table=table, sampler=sampler, loss=loss, counts=counts, biases=False, rngs=rngs)
    encoder = models.SequenceEncoder(
        head,
        num_blocks=settings.num_blocks,
        num_heads=settings.num_heads,
        max_length=settings.length,
        kind=settings.kind,
        item_dropout=settings.item_dropout,
        dropout=settings.dropout,
        attention_dropout=settings.attention_dropout,
        rngs=rngs,
    )
    return models.Classifier(encoder, head)


def pair_of(settings: Any) -> tuple[Sampler | None, Any]:
    """The sampler and the loss."""
    if settings.loss is None:
        return None, losses.full_softmax
    unigram = functools.partial(cx.samplers.unigram, power=settings.power, smoothing=1.0)
    own: dict[SamplerName, Any] = {"unigram": unigram}
    sampler = {**SAMPLERS, **own}[settings.sampler](settings.num_sampled)
    loss = LOSSES[settings.loss]
    if settings.loss == "negative_sampling":
        # Of SASRec, which draws one negative for each place: the mean of the shared ones stands for it.
        loss = functools.partial(losses.negative_sampling, reduction="mean")
    return sampler, losses.with_smoothing(loss, settings.smoothing)
