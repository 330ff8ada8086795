"""What rows without a gradient do in a dense optimizer's steps, summed up over the steps that they have missed."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from candax.rows.gradients import beside

Rate: TypeAlias = float | Callable[[Any], Any]

# Pairs (step, bound): of rows last updated at this step or later, interpolation may lose at most this share of a missed
# path. (Half of what is promised, as rounding loses some too.)
_BOUNDS = ((1, 5e-4), (30, 5e-6))
_MOST_NODES = 12
# The share of a path that the steps beyond the window would add.
_TAIL = 1e-6


class ExactState(NamedTuple):
    """What an exact optimizer keeps of a table.

    Attributes:
        step: how many there were.
        last: of each row, the step of its last update.
        moments: of each row after that step.
        decay: the sum over all steps of ``log(1 - rate_i weight_decay)``, and what rounding took from it; None without
            weight decay.
        decayed: that sum at each row's last update.
    """

    step: Int[Array, ""]
    last: Int[Array, " rows"]
    moments: tuple[Float[Array, "rows ..."], ...]
    decay: Float[Array, " 2"] | None
    decayed: Float[Array, " rows"] | None

    def grown(self, rows: int) -> "ExactState":
        """The state after rows were added at the end, which have missed no step."""

        def longer(leaf: Array, value: Any) -> Array:
            return jnp.concatenate([leaf, jnp.full((rows - len(leaf), *leaf.shape[1:]), value, leaf.dtype)])

        return self._replace(
            last=longer(self.last, self.step),
            moments=tuple(longer(moment, 0) for moment in self.moments),
            decayed=None if self.decay is None or self.decayed is None else longer(self.decayed, jnp.sum(self.decay)),
        )


@dataclasses.dataclass(frozen=True)
class Path:
    """What a row without gradient does in each step, but for the direction in which it moves."""

    rate: Rate
    weight_decay: float
    window: int
    decay: float

    def start(self, table: Array, number: int) -> ExactState:
        """The state of a table that was never updated."""
        decays = self.weight_decay != 0
        return ExactState(
            jnp.int32(0),
            jnp.zeros(table.shape[0], jnp.int32),
            tuple(jnp.zeros_like(table) for _ in range(number)),
            jnp.zeros(2) if decays else None,
            jnp.zeros(table.shape[0]) if decays else None,
        )

    def rate_at(self, step: Any) -> Any:
        """The learning rate of a step, the first being 1."""
        return self.rate(step - 1) if callable(self.rate) else self.rate

    def fold(self, state: ExactState, start: Any, add: Callable[[Any, Array, Array], Any]) -> Any:
        """Goes through the steps that rows have missed, at most a window of them: ``add(carry, number, weight)``.

        The weight is the rate of the step, times the decay of the direction, times weight decay after it.
        """
        missed = state.step - state.last
        log_decay = None if state.decay is None else self._log_decay(state)

        def each(carry: tuple[Any, Any], of_step: tuple[Array, Array]) -> tuple[tuple[Any, Any], None]:
            (carry, left), (number, decayed) = carry, of_step
            rate = self.rate_at(state.last + number)
            weight = decayed * rate
            if left is not None:
                left = left - jnp.log1p(-self.weight_decay * rate)
                weight = weight * jnp.exp(left)
            return (add(carry, number, jnp.where(number <= missed, weight, 0)), left), None

        numbers = np.arange(1, self.window + 1, dtype=np.int32)
        steps = jnp.asarray(numbers), jnp.asarray(self.decay**numbers, jnp.float32)
        return jax.lax.scan(each, (start, log_decay), steps, unroll=4)[0][0]

    def total(self, state: ExactState) -> Float[Array, " rows"]:
        """The sum of the weights of missed steps."""
        return self.fold(state, jnp.zeros(state.last.shape), lambda total, number, weight: total + weight)

    def nodes(self, state: ExactState, b2: float, number: int) -> tuple[list[Array], list[Array]]:
        """Values b and weights w, of each row, with ``sum_k w_k f(b_k) = sum_j w_j b_j f(b_j)`` over missed steps j.

        ``2 log b_j = log(b2^-j - b2^t)``; f is interpolated at Chebyshev nodes between the first and the last. (The
        factor b_j grows with j as 1 / sqrt(v) does: left to f, it would magnify how the small weights are rounded.)
        """
        logs = functools.partial(_log_scale, one_minus_power(b2, state.last), b2)
        lowest = logs(1)
        highest = logs(jnp.clip(state.step - state.last, 1, self.window).astype(float))
        middle, half = (highest + lowest) / 2, jnp.maximum((highest - lowest) / 2, 1e-6)
        early = power(self.decay, state.last)

        def add(sums: list[Array], step: Array, weight: Array) -> list[Array]:
            log = logs(step.astype(float))
            weight = weight / (1 - early * power(self.decay, step)) * jnp.exp(log)
            # Steps beyond the last have no weight, but their polynomials might be infinite.
            polynomials = _polynomials(jnp.clip((log - middle) / half, -1, 1), number)
            return [total + weight * value for total, value in zip(sums, polynomials, strict=True)]

        sums = self.fold(state, [jnp.zeros(middle.shape)] * number, add)
        angles, of_sums = _rule(number)
        values = [jnp.exp(middle + half * math.cos(angle)) for angle in angles]
        weights = [sum(float(f) * of for f, of in zip(of_node, sums, strict=True)) for of_node in of_sums]
        return values, weights

    def _log_decay(self, state: ExactState) -> Array:
        assert state.decay is not None
        assert state.decayed is not None
        return (state.decay[0] - state.decayed) + state.decay[1]

    def shrunk(self, state: ExactState, rows: Array) -> Array:
        """What weight decay alone has added to rows."""
        return jnp.zeros_like(rows) if state.decay is None else beside(jnp.expm1(self._log_decay(state)), rows) * rows

    def settled(self, state: ExactState, moments: tuple[Array, ...]) -> ExactState:
        """The state of rows that have taken all steps."""
        # The one only falls and the other only rises, so these are the new values. Without the old ones in them XLA
        # might write before it reads, and copy what it would overwrite.
        state = state._replace(last=jnp.maximum(state.last, state.step), moments=moments)
        if state.decay is None or state.decayed is None:
            return state
        return state._replace(decayed=jnp.minimum(state.decayed, jnp.sum(state.decay)))

    def after(self, state: ExactState, moments: tuple[Array, ...]) -> ExactState:
        """The state of rows after one step more, in which they had a gradient."""
        if state.decay is not None:
            state = state._replace(
                decay=_add(state.decay, jnp.log1p(-self.weight_decay * self.rate_at(state.step + 1)))
            )
        return self.settled(state._replace(step=state.step + 1), moments)


def _log_scale(early: Any, b2: float, number: Any) -> Any:
    """``log b_j`` of step j after t; ``early`` is ``1 - b2^t``, without which a small t would lose digits."""
    xp = jnp if isinstance(early, jax.Array) else np
    return 0.5 * xp.log(xp.expm1(-number * math.log(b2)) + early)


def _polynomials(places: Any, number: int) -> list[Any]:
    """The first ``number`` Chebyshev polynomials at places from -1 to 1."""
    found = [places * 0 + 1, places]
    while len(found) < number:
        found.append(2 * places * found[-1] - found[-2])
    return found[:number]


def _rule(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles of the nodes, and for each the weights of Chebyshev polynomials that make up its Lagrange polynomial."""
    angles = (np.arange(number) + 0.5) * np.pi / number
    return angles, np.cos(angles[:, None] * np.arange(number)) * np.where(np.arange(number) == 0, 1, 2) / number


@functools.cache
def plan(b1: float, b2: float) -> tuple[int, int]:
    """How many missed steps count, and how many nodes their sum needs.

    Raises:
        ValueError: where the bounds are not met.
    """
    if not b1 < math.sqrt(b2):
        raise ValueError(f"expected b1 < sqrt(b2), got {b1!r} and {b2!r}: a row without gradient would never stop.")
    window = window_of(b1 / math.sqrt(b2))
    for nodes in range(3, _MOST_NODES + 1):
        errors = [_error(b1, b2, window, nodes, step) for step, _ in _BOUNDS]
        if all(error <= bound for error, (_, bound) in zip(errors, _BOUNDS, strict=True)):
            return window, nodes
    raise ValueError(
        f"expected betas of which {_MOST_NODES} nodes give the path of a row without gradient to "
        f"{_BOUNDS[-1][1]:g}, got b1={b1!r}, b2={b2!r}, where it is {errors[-1]:.0e} off. Take a larger b2, or "
        "optax.adamw for lazy moments."
    )


def _error(b1: float, b2: float, window: int, nodes: int, first: int) -> float:
    """The largest relative error over rows last updated at several steps from ``first`` on, gaps, and roots."""
    worst = 0.0
    roots = np.concatenate([[0.0], np.logspace(-4, 4, 17)])[:, None]  # of which epsilon is 1
    angles, of_sums = _rule(nodes)
    for step in (first, 2 * first, 5 * first, 30 * first):
        for gap in {2, 5, 20, window // 4, window // 2, window}:
            j = np.arange(1, gap + 1)
            logs = _log_scale(-math.expm1(step * math.log(b2)), b2, j)
            weights = b1**j / -np.expm1((step + j) * math.log(b1)) * np.exp(logs)
            middle, half = (logs[-1] + logs[0]) / 2, (logs[-1] - logs[0]) / 2
            sums = [np.sum(weights * values) for values in _polynomials((logs - middle) / half, nodes)]
            wanted = np.sum(weights / (roots + np.exp(logs)), axis=1)
            at_nodes = 1 / (roots + np.exp(middle + half * np.cos(angles)))
            worst = max(worst, float(np.max(np.abs(at_nodes @ (of_sums @ sums) / wanted - 1))))
    return worst


def window_of(decay: float) -> int:
    return math.ceil(math.log(_TAIL) / math.log(decay))


def power(base: float, exponent: Array) -> Array:
    return jnp.exp(exponent.astype(float) * math.log(base))


def one_minus_power(base: float, exponent: Array) -> Array:
    return -jnp.expm1(exponent.astype(float) * math.log(base))


def _add(pair: Array, more: Array) -> Array:
    """Adds a number to a pair of a sum and what rounding took from it (Kahan)."""
    total = pair[0] + more
    return jnp.stack([total, pair[1] + ((pair[0] - total) + more)])
