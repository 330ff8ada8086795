"""word2vec's encoders: skip-gram (a word predicts its neighbours) and CBOW (the mean of the neighbours predicts it)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import check_positive, checked
from candax.models.windows import window_sums
from candax.rows import Table
from candax.rows.lookups import lookup_in


def _words(num_words: int, dim: int, rngs: nnx.Rngs) -> Table:
    check_positive("num_words", num_words)
    check_positive("dim", dim)
    return Table(jax.random.uniform(rngs.params(), (num_words, dim), minval=-0.5 / dim, maxval=0.5 / dim))


class SkipGram(nnx.Module):
    """A word's own vector, to predict its neighbours with.

    The embedding of every place of a run is the vector of its word: the batch has ``words`` int32[R, L] (-1: no word)
    and ``labels`` int32[R L, T], the neighbours of each place; see ``candax.data.WindowBatches``.

    Args:
        num_words: of the vocabulary.
        dim: coordinates of a vector.
        rngs: ``rngs.params`` initialises the vectors, uniform in +-0.5 / dim as in word2vec.

    Example:
        >>> from types import SimpleNamespace
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> import candax as cx
        >>> encoder = cx.models.SkipGram(100, 8, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(encoder, cx.Head(100, 8, biases=False, rngs=nnx.Rngs(1)))
        >>> model(SimpleNamespace(words=jnp.array([[5, 3, -1]]))).shape
        (3, 8)

    Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality (2013), section
        2. word2vec's code lets the neighbour predict the word; over a text that is the same set of pairs.
    """

    @checked
    def __init__(self, num_words: int, dim: int, *, rngs: nnx.Rngs) -> None:
        self.words = _words(num_words, dim, rngs)

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """One embedding per place."""
        rows = lookup_in(self, "words", batch.words)
        return rows.reshape(-1, rows.shape[2])


class CBOW(nnx.Module):
    """The mean of the neighbours' vectors, to predict a word with.

    The batch has ``words`` int32[R, L] (-1: no word), ``neighbours`` bool[R, L, T] saying which of the words around
    each place belong to its window, and ``labels`` int32[R L, 1], the words; see ``candax.data.WindowBatches``.

    Args:
        num_words: of the vocabulary.
        dim: coordinates of a vector.
        rngs: ``rngs.params`` initialises the vectors, uniform in +-0.5 / dim as in word2vec.

    Example:
        >>> from types import SimpleNamespace
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> import candax as cx
        >>> encoder = cx.models.CBOW(100, 8, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(encoder, cx.Head(100, 8, biases=False, rngs=nnx.Rngs(1)))
        >>> batch = SimpleNamespace(words=jnp.array([[5, 3, -1]]), neighbours=jnp.ones((1, 3, 2), bool))
        >>> model(batch).shape
        (3, 8)

    Source: Mikolov et al., Efficient Estimation of Word Representations in Vector Space (2013), section 3.1.
    """

    @checked
    def __init__(self, num_words: int, dim: int, *, rngs: nnx.Rngs) -> None:
        self.words = _words(num_words, dim, rngs)

    def __call__(self, batch: Any) -> Float[Array, "B dim"]:
        """One embedding per place; 0 where no word stands around it."""
        vectors = lookup_in(self, "words", batch.words)
        inside = jnp.asarray(batch.neighbours).astype(vectors.dtype)
        if not inside.shape[-1] or inside.shape[-1] % 2:
            raise ValueError(
                f"expected neighbours bool[R, L, 2 w], w words on either side of each place, got {list(inside.shape)}."
            )
        weights = inside / jnp.maximum(jnp.sum(inside, axis=-1, keepdims=True), 1)
        return window_sums(weights, vectors, inside.shape[-1] // 2).reshape(-1, vectors.shape[2])
