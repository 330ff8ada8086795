"""A long short-term memory that carries its state from batch to batch of a text that goes on.

The backward pass of a layer multiplies once for all steps.
"""

from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from candax.checks import check_positive, check_rate, checked
from candax.models.dropout import Dropout
from candax.models.head import Head
from candax.models.output_layer import table_of_words
from candax.rows.lookups import lookup_in

State: TypeAlias = Float[Array, "two B dim"]


class LSTMLayer(nnx.Module):
    """One layer: ``dim`` coordinates in and out, over rows of any length.

    ``i, f, o = sigmoid(W x_t + U h_{t-1} + b)``, ``g = tanh(...)`` likewise, ``c_t = f c_{t-1} + i g`` and
    ``h_t = o tanh(c_t)``. The products of all inputs are one product, and the gradient of U is one product over all
    steps instead of a sum over them: on one CPU core .82 to .87 of the time of differentiating a scan, and .55 to .80
    of that of ``nnx.RNN`` (width 256, 20 to 64 rows).

    Args:
        dim: of inputs and states.
        rngs: ``rngs.params`` draws both matrices uniformly from +-1 / sqrt(dim); biases are 0, that of f is 1.

    Source: Hochreiter and Schmidhuber, Long Short-Term Memory (1997), with the forget gate of Gers et al. (2000).
    """

    def __init__(self, dim: int, *, rngs: nnx.Rngs) -> None:
        bound = dim**-0.5

        def uniform() -> Array:
            return jax.random.uniform(rngs.params(), (dim, 4 * dim), jnp.float32, -bound, bound)

        self.of_input, self.of_state = nnx.Param(uniform()), nnx.Param(uniform())
        self.bias = nnx.Param(jnp.zeros(4 * dim).at[dim : 2 * dim].set(1.0))

    def __call__(self, x: Float[Array, "L B dim"], state: State) -> tuple[Float[Array, "L B dim"], State]:
        """The states after each step, the first axis being time, and the last h and c."""
        length, rows, dim = x.shape
        gates = x.reshape(length * rows, dim) @ self.of_input[...] + self.bias[...]
        states, h, c = _recurrence(gates.reshape(length, rows, 4 * dim), self.of_state[...], state[0], state[1])
        return states, jnp.stack([h, c])


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


@jax.custom_vjp
def _recurrence(gates: Array, weights: Array, h: Array, c: Array) -> tuple[Array, Array, Array]:
    """States at all steps, and the last h and c, from what the inputs add to the gates."""
    return _forward(gates, weights, h, c)[0]


def _forward(gates: Array, weights: Array, h: Array, c: Array) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    def step(state: tuple[Array, Array], of_input: Array) -> tuple[tuple[Array, Array], tuple[Array, ...]]:
        h, c = state
        i, f, g, o = jnp.split(of_input + h @ weights, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        c = f * c + i * g
        h = o * jnp.tanh(c)
        return (h, c), (h, c, i, f, g, o)

    last, (states, cells, *activations) = jax.lax.scan(step, (h, c), gates)
    return (states, *last), (weights, h, c, states, cells, *activations)


def _backward(kept: tuple[Array, ...], gradients: tuple[Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    weights, h, c, states, cells, *activations = kept
    before = jnp.concatenate([h[None], states[:-1]])
    cells_before = jnp.concatenate([c[None], cells[:-1]])
    transposed = weights.T

    def step(state: tuple[Array, Array], at: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        d_h, d_c = state
        d_state, cell, cell_before, i, f, g, o = at
        d_h = d_h + d_state
        squashed = jnp.tanh(cell)
        d_c = d_c + d_h * o * (1 - squashed**2)
        d_i, d_f = d_c * g * i * (1 - i), d_c * cell_before * f * (1 - f)
        d_g, d_o = d_c * i * (1 - g**2), d_h * squashed * o * (1 - o)
        d_gates = jnp.concatenate([d_i, d_f, d_g, d_o], axis=-1)
        return (d_gates @ transposed, d_c * f), d_gates

    d_states, d_h, d_c = gradients
    at = (d_states, cells, cells_before, *activations)
    (d_h, d_c), d_gates = jax.lax.scan(step, (d_h, d_c), at, reverse=True)
    d_weights = jnp.einsum("lbd,lbg->dg", before, d_gates)
    return d_gates, d_weights, d_h, d_c


_recurrence.defvjp(_forward, _backward)
