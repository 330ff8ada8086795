"""The model of `candax language`, from its settings and sizes."""

from typing import Any

import numpy as np
from flax import nnx

import candax as cx
from candax import models
from candax.base import Sampler


def language_model(
    settings: Any,
    num_words: int,
    *,
    counts: np.ndarray | None = None,
    sampler: Sampler | None = None,
    loss: Any = None,
    seed: int = 0,
) -> models.Classifier:
    """An LSTM or a transformer, followed by a head that shares its table of words."""
    rngs = nnx.Rngs(seed)
    words = cx.Embed(num_words, settings.dim, rngs=rngs)
    options = {} if loss is None else {"loss": loss}
    head = cx.Head(num_words, table=words, sampler=sampler, counts=counts, rngs=rngs, **options)
    encoder: models.LSTMLanguageModel | models.TransformerLanguageModel
    if settings.model == "lstm":
        encoder = models.LSTMLanguageModel(
            head,
            num_streams=settings.num_streams,
            num_layers=settings.num_layers,
            carry=settings.context == "full",
            dropout=settings.dropout,
            rngs=rngs,
        )
    else:
        encoder = models.TransformerLanguageModel(
            head,
            context=settings.read_again,
            num_blocks=settings.num_layers,
            num_heads=settings.num_heads,
            max_distance=settings.read_again + settings.length,
            scale=settings.dim**0.5,
            dropout=settings.dropout,
            attention_dropout=settings.dropout,
            rngs=rngs,
        )
    return models.Classifier(encoder, head)
