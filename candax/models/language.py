"""Encoders of texts that go on: an LSTM that carries its state from batch to batch, and a causal transformer."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from candax.checks import check_positive, check_rate, checked
from candax.models.dropout import Dropout
from candax.models.head import Head
from candax.models.lstm import LSTMLayer
from candax.models.output_layer import table_of_words
from candax.models.transformer import Block, SequenceEncoder
from candax.rows.lookups import lookup_in


class Carried(nnx.BatchStat):
    """What a model remembers of the batch before: part of its checkpoints, and kept where a loss is not finite."""


class TextPart(NamedTuple):
    """B streams of a text, L words of each.

    Attributes:
        words: that are read; -1 for none.
        fresh: whether a stream begins here: nothing is remembered of what came before.
    """

    words: Int[Array | np.ndarray, "B L"]
    fresh: Bool[Array | np.ndarray, " B"]


class LSTMLanguageModel(nnx.Module):
    """The state of the last of several LSTM layers after each word, its word vectors shared with the head.

    The score of word c to be next is ``w_c . h_t + b_c``. In training mode a call goes on from the state after the
    call before (truncated back-propagation: gradients end where the batch begins), stream by stream, unless
    ``batch.fresh`` says that a stream begins anew. In evaluation mode it starts from 0 and changes nothing; ``read``
    has the state as an argument and a result.

    The batch must have ``words`` int32[B, L] and ``fresh`` bool[B], see ``TextPart``.

    Args:
        head: whose class vectors are the word vectors, of as many coordinates as the states.
        num_streams: B in training.
        num_layers: one after the other.
        carry: whether the state is carried on; else each batch starts from 0.
        dropout: rate for coordinates of inputs, of states between layers and of what is returned; the same coordinates
            throughout a batch.
        rngs: ``params`` and ``dropout``.

    Raises:
        ValueError: for numbers out of range, and in a call for another number of streams.

    Example:
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> model = cx.models.LSTMLanguageModel(head, num_streams=2, rngs=nnx.Rngs(1))
        >>> part = cx.models.TextPart(jnp.array([[3, 5, 7], [2, 4, 6]]), jnp.array([True, True]))
        >>> model(part).shape
        (2, 3, 16)

    Source: Zaremba, Sutskever and Vinyals, Recurrent Neural Network Regularization (2014); the dropout of Gal and
        Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent Neural Networks (2016).
    """

    @checked
    def __init__(
        self,
        head: Head,
        *,
        num_streams: int,
        num_layers: int = 2,
        carry: bool = True,
        dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("num_streams", num_streams)
        check_positive("num_layers", num_layers)
        check_rate("dropout", dropout)
        self.words = table_of_words(head, self)
        dim = self.words.shape[1]
        self.layers = nnx.List([LSTMLayer(dim, rngs=rngs) for _ in range(num_layers)])
        self.dropouts = nnx.List([Dropout(dropout, rngs=rngs) for _ in range(num_layers + 1)])
        self.carry, self.deterministic = carry, False
        self.carried = Carried(self.start(num_streams))

    def start(self, num_streams: int) -> Float[Array, "layers two B dim"]:
        """The state before the first word."""
        return jnp.zeros((len(self.layers), 2, num_streams, self.words.shape[1]))

    def read(
        self, words: Int[Array | np.ndarray, "B L"], state: Float[Array, "layers two B dim"]
    ) -> tuple[Float[Array, "B L dim"], Float[Array, "layers two B dim"]]:
        """Embeddings after each word, and the state after the last, from the state before the first."""
        x = jnp.swapaxes(lookup_in(self, "words", words), 0, 1)
        kept = jnp.ones((1, *x.shape[1:]), x.dtype)
        states = []
        for number, layer in enumerate(self.layers):
            x, last = layer(x * self.dropouts[number](kept), state[number])
            states.append(last)
        x = x * self.dropouts[-1](kept)
        return jnp.swapaxes(x, 0, 1), jnp.stack(states)

    def __call__(self, batch: Any) -> Float[Array, "B L dim"]:
        """Embeddings after each word."""
        streams = batch.words.shape[0]
        if self.deterministic or not self.carry:
            return self.read(batch.words, self.start(streams))[0]
        before = self.carried[...]
        if streams != before.shape[2]:
            raise ValueError(
                f"expected batches of {before.shape[2]} streams, for which this model keeps its states, got {streams}."
            )
        fresh = jnp.asarray(batch.fresh)[:, None]
        embeddings, after = self.read(batch.words, jnp.where(fresh, 0.0, before))
        self.carried[...] = jax.lax.stop_gradient(after)
        return embeddings

    def set_view(self, deterministic: bool | None = None) -> None:
        """For ``nnx.view``.

        Args:
            deterministic: each call starts from 0, and nothing changes.
        """
        if deterministic is not None:
            self.deterministic = deterministic


class TransformerLanguageModel(nnx.Module):
    """What a causal transformer makes of each word and those before it, its word vectors shared with the head.

    The batch must have ``words`` int32[B, context + L], of which the first are read only: embeddings are returned of
    the last L. Words of -1 (before the start of the text) are not seen.

    Args:
        head: whose class vectors are the word vectors.
        context: words of each row that are read only.
        num_blocks: of the transformer, see ``SequenceEncoder``.
        num_heads: of each.
        max_distance: words back that have a bias of their own in the attention.
        kind: of blocks.
        scale: of what is read.
        dropout: rate for coordinates.
        attention_dropout: rate for weights of the attention.
        rngs: ``params`` and ``dropout``.

    Example:
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> model = cx.models.TransformerLanguageModel(head, context=2, rngs=nnx.Rngs(1))
        >>> part = cx.models.TextPart(jnp.array([[3, 5, 7, 9]]), jnp.array([True]))
        >>> model(part).shape
        (1, 2, 16)
    """

    @checked
    def __init__(
        self,
        head: Head,
        *,
        context: int = 0,
        num_blocks: int = 2,
        num_heads: int = 4,
        max_distance: int = 64,
        kind: Block = "ligr",
        scale: float = 16.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        if context < 0:
            raise ValueError(f"expected context >= 0, got {context}.")
        self.context = context
        self.body = SequenceEncoder(
            head,
            num_blocks=num_blocks,
            num_heads=num_heads,
            max_length=max_distance,
            kind=kind,
            scale=scale,
            dropout=dropout,
            attention_dropout=attention_dropout,
            rngs=rngs,
        )

    def start(self, num_streams: int) -> Float[Array, " none"]:
        """Nothing: all that is known is in the row."""
        del num_streams
        return jnp.zeros(0)

    def read(
        self, words: Int[Array | np.ndarray, "B L"], state: Float[Array, " none"]
    ) -> tuple[Float[Array, "B M dim"], Float[Array, " none"]]:
        """Embeddings after each word behind the context; the state is nothing."""
        words = jnp.asarray(words)
        packed = _Packed(words, jnp.where(words >= 0, 0, -1))
        return self.body(packed)[:, self.context :], state

    def __call__(self, batch: Any) -> Float[Array, "B M dim"]:
        """Embeddings after each word behind the context."""
        return self.read(batch.words, self.start(0))[0]


class _Packed(NamedTuple):
    items: Array
    segments: Array
