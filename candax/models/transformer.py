"""A transformer over rows in which several sequences are packed, and models of sequences and of texts on top of it."""

from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.checks import check_positive, check_rate, checked
from candax.models.dropout import Dropout
from candax.models.head import Head
from candax.models.output_layer import table_of_words
from candax.rows.lookups import lookup_in

Block: TypeAlias = Literal["ligr", "sasrec"]


class Attention(nnx.Module):
    """Causal self-attention with a learned bias for each head and distance, within the segments of a row.

    Args:
        dim: of tokens.
        num_heads: that divide ``dim``.
        max_distance: how far back a token has a bias of its own; beyond it the last one is taken.
        dropout: rate for the weights.
        rngs: ``params`` and ``dropout``.

    Raises:
        ValueError: if the heads do not divide ``dim``.
    """

    def __init__(self, dim: int, num_heads: int, max_distance: int, dropout: float, *, rngs: nnx.Rngs) -> None:
        if num_heads < 1 or dim % num_heads:
            raise ValueError(f"expected num_heads that divide dim, got {num_heads} and {dim}.")
        self.num_heads, self.max_distance = num_heads, max_distance
        self.query_key_value = nnx.Linear(dim, 3 * dim, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(dim, dim, use_bias=False, rngs=rngs)
        self.bias = nnx.Param(jnp.zeros((num_heads, max_distance)))
        self.dropout = Dropout(dropout, rngs=rngs)

    def __call__(self, x: Float[Array, "R L dim"], segments: Int[Array, "R L"]) -> Float[Array, "R L dim"]:
        """What each token takes from itself and from those before it."""
        rows, length, dim = x.shape
        parts = self.query_key_value(x).reshape(rows, length, 3, self.num_heads, dim // self.num_heads)
        query, key, value = parts[:, :, 0], parts[:, :, 1], parts[:, :, 2]
        back = jnp.arange(length)[:, None] - jnp.arange(length)[None, :]
        bias = self.bias[...][:, jnp.clip(back, 0, self.max_distance - 1)]
        scores = jnp.einsum("rqhd,rkhd->rhqk", query, key) * (dim // self.num_heads) ** -0.5 + bias
        seen = (segments[:, :, None] == segments[:, None, :]) & (back >= 0)
        weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e9), axis=-1)
        mixed = jnp.einsum("rhqk,rkhd->rqhd", self.dropout(weights), value)
        return self.out(mixed.reshape(rows, length, dim))


class TransformerBlock(nnx.Module):
    """Attention, then a feed-forward layer, each beside what it is added to.

    "sasrec": ``x + attention(norm(x))``, then ``x + W_2 relu(W_1 norm(x))`` of width ``dim``. "ligr": each branch is
    multiplied by a gate ``sigmoid(W_g x)`` of what it is added to, and the feed-forward layer is
    ``W_3 (silu(W_1 x) * W_2 x)`` of width ``4 dim``.

    Args:
        dim: of tokens.
        num_heads: of the attention.
        max_distance: see ``Attention``.
        kind: see above.
        dropout: rate for what is added.
        attention_dropout: rate for weights of the attention.
        rngs: ``params`` and ``dropout``.

    Source: Kang and McAuley, Self-Attentive Sequential Recommendation (2018); the gated form: Borisyuk et al., LiGR
        (2025), in the reading of Tikhonovich et al., eSASRec (2025).
    """

    @checked
    def __init__(
        self,
        dim: int,
        num_heads: int,
        max_distance: int,
        *,
        kind: Block = "ligr",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("dim", dim)
        check_positive("max_distance", max_distance)
        check_rate("dropout", dropout)
        check_rate("attention_dropout", attention_dropout)
        self.gated = kind == "ligr"
        self.attention = Attention(dim, num_heads, max_distance, attention_dropout, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(dim, rngs=rngs) for _ in range(2)])
        width = 4 * dim if self.gated else dim
        self.wide = nnx.Linear(dim, 2 * width if self.gated else width, rngs=rngs)
        self.narrow = nnx.Linear(width, dim, rngs=rngs)
        self.gates = nnx.List([nnx.Linear(dim, dim, rngs=rngs) for _ in range(2 if self.gated else 0)])
        self.dropouts = nnx.List([Dropout(dropout, rngs=rngs) for _ in range(2)])

    def __call__(self, x: Float[Array, "R L dim"], segments: Int[Array, "R L"]) -> Float[Array, "R L dim"]:
        """The tokens after the block."""
        for number, branch in enumerate((lambda y: self.attention(y, segments), self._feed_forward)):
            added = branch(self.norms[number](x))
            if self.gated:
                added = added * jax.nn.sigmoid(self.gates[number](x))
            x = x + self.dropouts[number](added)
        return x

    def _feed_forward(self, x: Float[Array, "R L dim"]) -> Float[Array, "R L dim"]:
        wide = self.wide(x)
        if not self.gated:
            return self.narrow(jax.nn.relu(wide))
        gate, value = jnp.split(wide, 2, axis=-1)
        return self.narrow(jax.nn.silu(gate) * value)


class SequenceEncoder(nnx.Module):
    """Embeddings of what comes next after each item of sequences, one table for items read and items predicted.

    ``norm(blocks(scale * w_item))``. The batch must have ``items`` int32[R, L] (-1 pads) and ``segments`` int32[R, L],
    where items of one row are of the same sequence if their segments are equal: several short sequences share a row.

    Args:
        head: whose class vectors are the items' vectors.
        num_blocks: transformer blocks.
        num_heads: of each.
        max_length: items back that have a bias of their own in the attention.
        kind: of blocks, see ``TransformerBlock``.
        scale: of what is read: class vectors are small, and a transformer's input should be near 1.
        item_dropout: the probability that a whole item is not read in training.
        dropout: for coordinates of the input and of what blocks add.
        attention_dropout: for weights of the attention.
        rngs: ``params`` and ``dropout``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> from types import SimpleNamespace
        >>> import candax as cx
        >>> head = cx.Head(1000, 16, rngs=nnx.Rngs(0))
        >>> encoder = cx.models.SequenceEncoder(head, rngs=nnx.Rngs(1))
        >>> batch = SimpleNamespace(items=jnp.array([[3, 5, 7, 9]]), segments=jnp.array([[0, 0, 1, 1]]))
        >>> encoder(batch).shape
        (1, 4, 16)

    Source: Kang and McAuley, Self-Attentive Sequential Recommendation (2018).
    """

    @checked
    def __init__(
        self,
        head: Head,
        *,
        num_blocks: int = 1,
        num_heads: int = 2,
        max_length: int = 64,
        kind: Block = "ligr",
        scale: float = 25.0,
        item_dropout: float = 0.0,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("num_blocks", num_blocks)
        check_positive("max_length", max_length)
        check_rate("item_dropout", item_dropout)
        if not scale > 0:
            raise ValueError(f"expected scale > 0, got {scale}.")
        self.items = table_of_words(head, self)
        dim = self.items.shape[1]
        self.scale, self.item_dropout = scale, item_dropout
        rates = {"dropout": dropout, "attention_dropout": attention_dropout}
        self.blocks = nnx.List(
            [TransformerBlock(dim, num_heads, max_length, kind=kind, **rates, rngs=rngs) for _ in range(num_blocks)]
        )
        self.norm = nnx.LayerNorm(dim, rngs=rngs)
        self.dropout = Dropout(dropout, rngs=rngs)
        self.whole = Dropout(item_dropout, rngs=rngs)

    def __call__(self, batch: Any) -> Float[Array, "R L dim"]:
        """An embedding for each item: of what comes after it."""
        x = self.scale * lookup_in(self, "items", batch.items)
        read = self.whole(jnp.ones((*x.shape[:2], 1), x.dtype))
        # Unlike dropout of coordinates, what is left is not scaled: at prediction all items are read as they are.
        x = self.dropout(jnp.where(read > 0, x, 0.0))
        for block in self.blocks:
            x = block(x, batch.segments)
        return self.norm(x)


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
