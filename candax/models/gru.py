"""Encoder for sentences: a gated recurrent unit that predicts each next word, its word vectors shared with the head."""

from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from candax.checks import check_positive, checked
from candax.models.head import Head
from candax.models.output_layer import table_of_words
from candax.rows.lookups import lookup_in

Activation: TypeAlias = Literal["tanh", "sigmoid"]
_ACTIVATIONS = {"tanh": jnp.tanh, "sigmoid": jax.nn.sigmoid}


class GRULanguageModel(nnx.Module):
    r"""P h_t, where h_t is the state of a gated recurrent unit after t words.

    ``r_t = sigmoid(W_rx x_t + W_rh h_{t-1} + b_r)``, ``u_t = sigmoid(W_ux x_t + W_uh h_{t-1} + b_u)``,
    ``c_t = tanh(W_cx x_t + r_t * (W_ch h_{t-1}) + b_c)``, ``h_t = (1 - u_t) * c_t + u_t * h_{t-1}`` with ``h_0 = 0``;
    x_t is the vector of word t. The score of word c to be next is ``w_c . P h_t``: the words' vectors are one table for
    both uses, trained by rows from both.

    The batch must have ``words`` int32[B, L], the words read so far (-1 pads at the end), and ``labels`` int32[B L, 1],
    the words that follow each (-1 pads): every place of every sentence is an example of its own.

    Args:
        head: whose class vectors are the word vectors. Rows from ``head.num_classes`` on (of a larger ``table``) can be
            words that are read and never predicted, such as the start of a sentence.
        hidden_dim: coordinates of h_t.
        candidate: activation of c_t.
        init_scale: matrices and biases are drawn uniformly from +-init_scale.
        rngs: ``rngs.params`` initialises matrices and biases.

    Raises:
        ValueError: if ``hidden_dim``, ``init_scale`` or ``candidate`` is out of range.

    Example:
        >>> from types import SimpleNamespace
        >>> import jax.numpy as jnp
        >>> from flax import nnx
        >>> import candax as cx
        >>> head = cx.Head(1000, table=cx.Embed(1001, 16, rngs=nnx.Rngs(0)), biases=False, rngs=nnx.Rngs(0))
        >>> model = cx.models.Classifier(cx.models.GRULanguageModel(head, 32, rngs=nnx.Rngs(1)), head)
        >>> model(SimpleNamespace(words=jnp.array([[1000, 3, 5, -1]]))).shape  # four places
        (4, 16)
        >>> model.encoder.words is head.vectors  # one table for both uses
        True

    Source: Cho et al., On the Properties of Neural Machine Translation: Encoder-Decoder Approaches (2014); Botev,
        Zheng, Barber, Complementary Sum Sampling (2017), section 6.2, where c_t is printed with a sigmoid: that is
        ``candidate="sigmoid"``; tanh is the standard.
    """

    @checked
    def __init__(
        self,
        head: Head,
        hidden_dim: int,
        *,
        candidate: Activation = "tanh",
        init_scale: float = 0.05,
        rngs: nnx.Rngs,
    ) -> None:
        check_positive("hidden_dim", hidden_dim)
        if not init_scale > 0:
            raise ValueError(f"expected init_scale > 0, got {init_scale}.")
        self.words = table_of_words(head, self)
        word_dim = self.words.shape[1]

        def uniform(key: Array, shape: tuple[int, ...], dtype: Any = jnp.float32, **_: Any) -> Array:
            return jax.random.uniform(key, shape, dtype, -init_scale, init_scale)

        self.cell = nnx.GRUCell(
            word_dim,
            hidden_dim,
            activation_fn=_ACTIVATIONS[candidate],
            kernel_init=uniform,
            recurrent_kernel_init=uniform,
            bias_init=uniform,
            rngs=rngs,
        )
        self.projection = nnx.Linear(hidden_dim, word_dim, use_bias=False, kernel_init=uniform, rngs=rngs)

    def __call__(self, batch: Any) -> Float[Array, "BL word_dim"]:
        """Embeddings of all places, sentence by sentence."""
        by_time = jnp.swapaxes(lookup_in(self, "words", batch.words), 0, 1)
        start = jnp.zeros((by_time.shape[1], self.cell.hidden_features), by_time.dtype)
        _, states = jax.lax.scan(self.cell, start, by_time)
        return self.projection(jnp.swapaxes(states, 0, 1)).reshape(-1, by_time.shape[2])
