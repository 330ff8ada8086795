"""Exact perplexity and likelihood over all words, with no more than a block of logits at once."""

import functools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Int32

from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.data import Corpus, sentences_in_order
from candax.losses import full_softmax
from candax.models import Classifier
from candax.models.head import Head
from candax.recipes.language.streams import StreamBatch, words_at
from candax.training import embed
from candax.training.trainer import Graph

# Streams that a text is read in, and how many windows before its first word each has read.
_STREAMS = 32
_WARM_UP = 4


def perplexity(model: Any, ids: Int32[np.ndarray, " N"], start: int, *, length: int, context: int = 0) -> float:
    """Perplexity: exp of the mean of ``-log p(word | what was before)``, over all words.

    The text is read in parallel streams. Each begins some windows before the first word it predicts, so that a model
    that carries a state on has one by then; one whose ``carry`` is False starts each window from nothing, as in
    training.

    Args:
        model: with an encoder that has ``start`` and ``read``, such as ``cx.models.LSTMLanguageModel``; its head is a
            ``cx.Head``, or has ``nll(embeddings, labels)``, which gives ``-log p`` of each.
        ids: of the text; each is predicted, the first too.
        start: id of the word that the text is read from.
        length: words of a window.
        context: words before each window that are read again.
    """
    graph, arrays = nnx.split(model)
    state: Any = model.encoder.start(_STREAMS)
    total, words = 0.0, 0
    for batch in windows(ids, start, length=length, context=context, num_streams=_STREAMS):
        losses, after = _losses(Graph(graph), arrays, batch, state)
        if getattr(model.encoder, "carry", True):
            state = after
        total += float(losses)
        words += int((batch.labels >= 0).sum())
    assert words == len(ids)
    return math.exp(min(total / words, 700.0))


_nll = jax.jit(functools.partial(full_softmax, block_size=DEFAULT_BLOCK_SIZE))


def log_likelihood(model: Classifier, corpus: Corpus, sentences: np.ndarray, batch_size: int) -> float:
    """The exact mean log-likelihood of the words of some sentences, in nats per word.

    Args:
        model: with an encoder of ``SentenceBatch``, such as ``cx.models.GRULanguageModel``.
        corpus: of the sentences.
        sentences: their numbers.
        batch_size: sentences at a time.

    Raises:
        FloatingPointError: where it is not finite.
    """
    total, words = 0.0, 0
    for batch in sentences_in_order(corpus, sentences, batch_size):
        total -= float(jnp.sum(_nll(embed(model, batch), batch.labels, model.head.classes())))
        words += int((batch.labels >= 0).sum())
    if not np.isfinite(total):
        raise FloatingPointError(f"the log-likelihood is {total}.")
    return total / words


def windows(
    ids: Int32[np.ndarray, " N"], start: int, *, length: int, context: int, num_streams: int
) -> Iterator[StreamBatch]:
    """Batches in which each word of a text is predicted once, in streams that have read what comes before them."""
    read = np.concatenate([np.array([start], np.int32), ids[:-1]])
    # Whole windows, so that no window begins before the text and ends in it.
    each = -(-len(ids) // (num_streams * length)) * length
    firsts = np.arange(num_streams) * each
    ends = np.minimum(firsts + each, len(ids))
    for offset in range(-_WARM_UP * length, each, length):
        places = (firsts + offset)[:, None] + np.arange(length)
        asked = (places >= firsts[:, None]) & (places < ends[:, None])
        labels = np.where(asked, ids[np.clip(places, 0, len(ids) - 1)], np.int32(-1))
        # A stream starts afresh as long as its window has nothing before it.
        yield StreamBatch(words_at(read, firsts + offset, length, context), labels, firsts + offset <= 0)


@functools.partial(jax.jit, static_argnums=0)
def _losses(graph: Graph, arrays: Any, batch: StreamBatch, state: Any) -> tuple[Array, Any]:
    model = nnx.merge(graph.graph, arrays)
    model.eval()
    fresh = batch.fresh[:, None]
    state = jnp.where(fresh, 0.0, state) if state.ndim > 1 else state
    embeddings, state = model.encoder.read(batch.words, state)
    told = embeddings.reshape(-1, embeddings.shape[-1]), jnp.asarray(batch.labels).reshape(-1, 1)
    if not isinstance(model.head, Head):
        return jnp.sum(model.head.nll(*told)), state
    return jnp.sum(full_softmax(*told, model.head.classes(), block_size=DEFAULT_BLOCK_SIZE)), state
