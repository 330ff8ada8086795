"""Optimizers by rows that come to what dense ones come to.

A dense optimizer moves every row in every step, also where the gradient is zero: its moments decay, and the row follows
them. Here a row remembers the step of its last update and takes at once, when it is read, all the steps that it has
missed since.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from candax.checks import checked
from candax.rows.gradients import beside
from candax.rows.missed import ExactState, Path, Rate, one_minus_power, plan, power, window_of


class Exact(optax.GradientTransformation):
    """An optax transformation of one table that knows where rows have gone that it has not updated.

    Attributes:
        settle: ``(state, rows) -> (state, moved)``: the state of rows after the latest step, and how far they moved.
    """

    settle: Callable[[ExactState, Array], tuple[ExactState, Array]]

    def __new__(cls, init: Any, update: Any, settle: Any) -> "Exact":
        """An optax pair, and what settles rows."""
        made = super().__new__(cls, init, update)
        made.settle = settle
        return made

    def __getnewargs__(self) -> tuple[Any, Any, Any]:
        """For ``copy.deepcopy`` of a model or an optimizer; a named tuple's would leave out ``settle``."""
        return self.init, self.update, self.settle


@checked
def exact_adamw(rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8, weight_decay: float = 1e-4) -> Exact:
    """``optax.adamw`` of the whole table, at the price of the rows in use.

    Where a row has no gradient in step i, dense AdamW still does

        m_i = b1 m_(i-1),  v_i = b2 v_(i-1),
        p_i = p_(i-1) (1 - rate_i weight_decay) - rate_i m_i / (1 - b1^i) / (sqrt(v_i / (1 - b2^i)) + eps).

    After such steps t + 1 ... t + n the row has moved by ``- sum_j w_j m_t / (sqrt(v_t) + eps b_j)``, where ``w_j`` and
    ``b_j = sqrt((1 - b2^(t + j)) / b2^j)`` depend on t and j alone. As a function of log b, ``1 / (s + eps b)`` is
    smooth for any s. So it is interpolated at a few nodes, and the sum over steps becomes one over nodes, whose weights
    cost O(rows) and not O(rows dim). Steps beyond a window, where ``(b1 / sqrt(b2))^j`` is down at 1e-6, are left out.

    Args:
        rate: learning rate, or a schedule: a function of the number of steps before.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: beside the root.
        weight_decay: decoupled, of each step.

    Returns:
        For ``tables=`` of ``cx.Optimizer`` or for ``cx.rows.rowwise``. Window and nodes are chosen such that a missed
        path is off by at most 1e-5 of itself in rows last updated at step 30 or later, and by 1e-3 before.

    Raises:
        ValueError: for betas where 12 nodes are not enough for that; at ``init`` for tables narrower than float32.

    Example:
        >>> from candax.rows import rowwise
        >>> adam, table = rowwise(exact_adamw(0.1, weight_decay=0.0)), jnp.ones((2, 1))
        >>> state = adam.init(table)
        >>> for row in (0, 1):
        ...     table, state, *_ = adam.update(jnp.ones((1, 1)), state, table, jnp.array([row]))
        >>> [round(row, 3) for row in table.ravel().tolist()]
        [0.9, 0.926]
        >>> [round(row, 3) for row in adam.settle(state, table)[1].ravel().tolist()]  # row 0 has moved on
        [0.833, 0.926]

    Source:
        D. P. Kingma and J. Ba, Adam, ICLR 2015, algorithm 1; I. Loshchilov and F. Hutter, Decoupled weight decay
        regularization, ICLR 2019, algorithm 2.
    """
    _check_decays(b1=b1, b2=b2)
    if not eps > 0:
        raise ValueError(f"expected eps > 0, got {eps!r}: a row without gradient would be divided by 0.")
    _check_rate(rate, weight_decay)
    return _adamw(rate, b1, b2, eps, weight_decay)


# Those that are made alike are the same, and so find what was compiled for one another.
@functools.lru_cache(maxsize=64)
def _adamw(rate: Rate, b1: float, b2: float, eps: float, weight_decay: float) -> Exact:
    window, nodes = plan(b1, b2)
    path = Path(rate, weight_decay, window, b1)

    def init(table: Any) -> ExactState:
        return path.start(_table(table), 2)

    def settle(state: ExactState, rows: Array) -> tuple[ExactState, Array]:
        mean, square = state.moments
        inverse, weights = path.nodes(state, b2, nodes)
        root, gap = jnp.sqrt(square), state.step - state.last
        moved = path.shrunk(state, rows)
        for b, w in zip(inverse, weights, strict=True):
            moved -= beside(w, rows) * mean / (root + eps * beside(b, rows))
        moments = mean * beside(power(b1, gap), rows), square * beside(power(b2, gap), rows)
        return path.settled(state, moments), moved

    def update(grads: Any, state: ExactState, rows: Any = None) -> tuple[Array, ExactState]:
        rows = _table(rows)
        (state, moved), now = settle(state, rows), state.step + 1
        mean, square = state.moments
        mean, square = b1 * mean + (1 - b1) * grads, b2 * square + (1 - b2) * jnp.square(grads)
        root = jnp.sqrt(square / one_minus_power(b2, now))
        step = mean / one_minus_power(b1, now) / (root + eps) + weight_decay * (rows + moved)
        return moved - path.rate_at(now) * step, path.after(state, (mean, square))

    return Exact(init, update, settle)


@checked
def exact_adam(rate: Rate, b1: float = 0.9, b2: float = 0.999, eps: float = 1e-8) -> Exact:
    """``optax.adam`` of the whole table, at the price of the rows in use: ``exact_adamw`` without decay.

    Args:
        rate: learning rate, or a schedule: a function of the number of steps before.
        b1: decay of the mean of gradients.
        b2: decay of the mean of their squares.
        eps: beside the root.

    Returns:
        See ``exact_adamw``.

    Raises:
        ValueError: for betas where 12 nodes are not enough.

    Example:
        >>> exact_adam(1e-3).init(jnp.zeros((5, 2))).last.shape
        (5,)

    Source:
        D. P. Kingma and J. Ba, Adam, ICLR 2015, algorithm 1.
    """
    return exact_adamw(rate, b1, b2, eps, 0.0)


@checked
def exact_rmsprop(rate: Rate, decay: float = 0.9, eps: float = 1e-8) -> Exact:
    """``optax.rmsprop`` of the whole table: rows without gradient stay, and their mean square decays.

    ``v = decay v + (1 - decay) g^2,  p = p - rate g / sqrt(v + eps)``.

    Args:
        rate: learning rate, or a schedule: a function of the number of steps before.
        decay: of the mean of squares.
        eps: within the root.

    Returns:
        For ``tables=`` of ``cx.Optimizer`` or for ``cx.rows.rowwise``.

    Example:
        >>> len(exact_rmsprop(1e-3).init(jnp.zeros((5, 2))).moments)
        1

    Source:
        G. Hinton, Neural networks for machine learning, 2012, lecture 6e.
    """
    _check_decays(decay=decay)
    _check_rate(rate, 0)
    path = Path(rate, 0.0, 1, decay)

    def settle(state: ExactState, rows: Array) -> tuple[ExactState, Array]:
        gap = state.step - state.last
        return path.settled(state, (state.moments[0] * beside(power(decay, gap), rows),)), jnp.zeros_like(rows)

    def update(grads: Any, state: ExactState, rows: Any = None) -> tuple[Array, ExactState]:
        state, _ = settle(state, _table(rows))
        square = decay * state.moments[0] + (1 - decay) * jnp.square(grads)
        return -path.rate_at(state.step + 1) * grads / jnp.sqrt(square + eps), path.after(state, (square,))

    return Exact(lambda table: path.start(_table(table), 1), update, settle)


@checked
def exact_momentum(rate: Rate, momentum: float = 0.9, *, nesterov: bool = False) -> Exact:
    """``optax.sgd`` with momentum, of the whole table: rows without gradient roll on.

    ``m = momentum m + g,  p = p - rate m``; Nesterov's: ``p = p - rate (g + momentum m)``.

    Args:
        rate: learning rate, or a schedule: a function of the number of steps before.
        momentum: decay of the sum of gradients.
        nesterov: as in ``optax.sgd``.

    Returns:
        For ``tables=`` of ``cx.Optimizer`` or for ``cx.rows.rowwise``.

    Example:
        >>> len(exact_momentum(1e-3).init(jnp.zeros((5, 2))).moments)
        1

    Source:
        I. Sutskever, J. Martens, G. Dahl and G. Hinton, On the importance of initialization and momentum in deep
        learning, ICML 2013, section 2.
    """
    _check_decays(momentum=momentum)
    _check_rate(rate, 0)
    path = Path(rate, 0.0, window_of(momentum), momentum)

    def settle(state: ExactState, rows: Array) -> tuple[ExactState, Array]:
        total = path.total(state) * (momentum if nesterov else 1)
        moments = (state.moments[0] * beside(power(momentum, state.step - state.last), rows),)
        return path.settled(state, moments), -beside(total, rows) * state.moments[0]

    def update(grads: Any, state: ExactState, rows: Any = None) -> tuple[Array, ExactState]:
        state, moved = settle(state, _table(rows))
        trace = momentum * state.moments[0] + grads
        step = grads + momentum * trace if nesterov else trace
        return moved - path.rate_at(state.step + 1) * step, path.after(state, (trace,))

    return Exact(lambda table: path.start(_table(table), 1), update, settle)


def _check_decays(**decays: float) -> None:
    for name, value in decays.items():
        if not 0 < value < 1:
            raise ValueError(f"expected {name} between 0 and 1, got {value!r}.")


def _check_rate(rate: Rate, weight_decay: float) -> None:
    if not callable(rate) and rate < 0:
        raise ValueError(f"expected a rate of at least 0, got {rate!r}.")
    if not 0 <= weight_decay < 1 or not (callable(rate) or rate * weight_decay < 1):
        raise ValueError(f"expected weight_decay of at least 0 and, times the rate, below 1, got {weight_decay!r}.")


def _table(rows: Any) -> Array:
    """The rows; ValueError where they are not those of one table."""
    if not isinstance(rows, jax.Array):
        raise ValueError(
            f"expected the rows of one table, got a {type(rows).__name__}. Exact optimizers are for tables alone: "
            "cx.Optimizer(model, optax.adam(...), tables=cx.rows.exact_adam(...))."
        )
    return rows
