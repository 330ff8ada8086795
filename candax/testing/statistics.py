"""Two-gate tests: |mean - truth| < 5 standard errors, and 5 standard errors < delta * |truth|.

The second gate makes the first one mean something: a test that passes has seen that there is no bias of delta. A gross
fault does not wait for it: a deviation of more than 8 standard errors ends the test at the next look. Looks come after
1, 2, 4, ... chunks, so that by chance alone they end a correct test about once in 10^14.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from candax.testing.broken import Clock, LawBroken

CHUNK = 1 << 12
# Draws from which the spread is estimated before the number of all draws is planned.
PILOT_CHUNKS = 4
# Variances are estimated from few chunks; rare classes may vary more than these show.
_MARGIN = 1.25
_EARLY = 8.0
# With fewer nonzero draws than this, mean and spread are too rough for a look before the end.
_ENOUGH = 100


class Estimate(NamedTuple):
    """Mean over draws, its standard error, and the number of draws."""

    mean: np.ndarray
    stderr: np.ndarray
    draws: int


def by_index(index: tuple[int, ...]) -> str:
    """How messages name an entry of the mean if nothing better is known."""
    return f"entry {index}" if index else "the mean"


def optimised(function: Callable[..., Any]) -> Callable[..., Any]:
    """``jax.jit`` with optimisation, even in a process that compiles without it: these programs run very often."""
    options: dict[str, Any] = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
    return jax.jit(function, compiler_options=options if jax.default_backend() == "cpu" else None)


class _Sums:
    """Sums over all draws so far, in float64."""

    def __init__(self, draw: Callable[[jax.Array], jax.Array], seed: int, large: bool) -> None:
        def chunk(key: jax.Array) -> tuple[jax.Array, ...]:
            values = jax.vmap(draw)(jax.random.split(key, CHUNK))
            return tuple(jnp.sum(part, axis=0) for part in (values, values**2, values != 0))

        self._chunk: Callable[..., Any] = jax.jit(chunk) if large else optimised(chunk)
        self._key = jax.random.key(seed)
        self.chunks, self.seconds = 0, 0.0
        self._totals: Any = 0.0

    def add_chunk(self) -> None:
        start = time.monotonic()
        parts = [np.asarray(part, np.float64) for part in self._chunk(jax.random.fold_in(self._key, self.chunks))]
        # The time of the first chunk includes compiling, so the second replaces it.
        self.seconds = time.monotonic() - start if self.chunks < 2 else min(self.seconds, time.monotonic() - start)
        self._totals = np.stack(parts) + self._totals
        self.chunks += 1

    def estimate(self) -> Estimate:
        draws = self.chunks * CHUNK
        mean, square = self._totals[0] / draws, self._totals[1] / draws
        return Estimate(mean, np.sqrt(np.maximum(square - mean**2, 0) / draws), draws)

    def other_than_zero(self) -> np.ndarray:
        return np.asarray(self._totals[2])


def check_mean(
    draw: Callable[[jax.Array], jax.Array],
    truth: np.ndarray,
    *,
    delta: float,
    seed: int,
    clock: Clock | None = None,
    max_draws: int = 40_000_000,
    large: bool = False,
    name_of: Callable[[tuple[int, ...]], str] = by_index,
) -> Estimate:
    """Checks that E[draw(key)] equals ``truth`` wherever truth is not 0, and that draws are 0 wherever it is.

    The number of draws follows from the spread of the first ones, so that the second gate is met.

    Args:
        draw: a function of a key.
        truth: what its mean should be, of the same shape.
        delta: the relative bias that must be seen.
        seed: of the keys.
        clock: the bound on time (default 300 seconds).
        max_draws: the bound on draws.
        large: True for a program that would take longer to optimise than to run: it gets plain ``jax.jit``.
        name_of: how messages name the entry of an index.

    Returns:
        The mean, its standard error and the number of draws.

    Raises:
        LawBroken: a gate is not passed, or would not be within the bounds.
    """
    clock = Clock(300.0) if clock is None else clock
    truth = np.asarray(truth, np.float64)
    sums = _Sums(draw, seed, large)
    planned = PILOT_CHUNKS
    while True:
        sums.add_chunk()
        chunks, estimate = sums.chunks, sums.estimate()
        _check_possible(estimate, truth, name_of)
        if chunks & (chunks - 1) == 0:
            _check_bias(estimate, truth, _EARLY, np.asarray(sums.other_than_zero() >= _ENOUGH), name_of)
        if chunks < planned:
            if clock.left() == 0:
                _undecided(estimate, truth, delta, f"{clock.seconds:g} seconds have passed", name_of)
            continue
        blunt = 5 * estimate.stderr > delta * np.abs(truth)
        if not np.any(blunt & (truth != 0)):
            _check_bias(estimate, truth, 5.0, np.full(truth.shape, True), name_of)
            return estimate
        wanted = max(_MARGIN * _draws_wanted(estimate, truth, delta).max(), (chunks + 1) * CHUNK)
        planned = int(np.ceil(wanted / CHUNK))
        if wanted > max_draws:
            _undecided(estimate, truth, delta, f"more than {max_draws:,} draws would be needed", name_of)
        needed = (planned - chunks) * sums.seconds
        if needed > clock.left():
            text = f"about {needed:.0f} more seconds would be needed and {clock.left():.0f} are left"
            _undecided(estimate, truth, delta, text, name_of)


def _draws_wanted(estimate: Estimate, truth: np.ndarray, delta: float) -> np.ndarray:
    """How many draws bring 5 standard errors down to delta * |truth|."""
    scale = np.where(truth == 0, 1.0, np.abs(truth))
    return np.where(truth == 0, 0.0, estimate.draws * (5 * estimate.stderr / (delta * scale)) ** 2)


def _undecided(estimate: Estimate, truth: np.ndarray, delta: float, reason: str, name_of: Any) -> None:
    wanted = _draws_wanted(estimate, truth, delta)
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(wanted), truth.shape))
    raise LawBroken(
        f"not decided: {reason}. {name_of(worst)} has the most spread: mean {estimate.mean[worst]:.4g} +- "
        f"{estimate.stderr[worst]:.2g} where {truth[worst]:.4g} is expected, after {estimate.draws:,} draws; "
        f"{wanted[worst]:,.0f} draws would be needed to see a bias of {delta:.3g}. Choose a case with fewer or "
        f"likelier classes or more samples, a larger delta=, or a larger seconds=."
    )


def _check_possible(estimate: Estimate, truth: np.ndarray, name_of: Any) -> None:
    bad = ~np.isfinite(estimate.mean)
    if np.any(bad):
        raise LawBroken(f"draws are not finite: {_name(bad, name_of)}: mean {estimate.mean[bad].flat[0]}")
    impossible = (truth == 0) & (estimate.mean != 0)
    if np.any(impossible):
        where = tuple(int(i) for i in np.argwhere(impossible)[0])
        raise LawBroken(
            f"drawn outside the support: {_name(impossible, name_of)}: mean {estimate.mean[where]:.4g} where 0 is "
            f"expected, after {estimate.draws:,} draws"
        )


def _check_bias(estimate: Estimate, truth: np.ndarray, errors: float, among: np.ndarray, name_of: Any) -> None:
    mean, stderr = estimate.mean, estimate.stderr
    off = mean - truth
    # The last term is for sums in float32 where nothing varies.
    biased = among & (np.abs(off) > errors * stderr + 1e-5 * np.abs(truth))
    if not np.any(biased):
        return
    worst = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(biased, np.abs(off), -1)), truth.shape))
    share = f", {100 * off[worst] / truth[worst]:+.2f} %" if truth[worst] else ""
    sigmas = f", {abs(off[worst]) / stderr[worst]:.1f} standard errors" if stderr[worst] else ", and nothing varies"
    raise LawBroken(
        f"biased at {np.sum(biased)} of {np.sum(truth != 0)} places, most at {name_of(worst)}: mean {mean[worst]:.4f} "
        f"where {truth[worst]:.4g} is expected{share}{sigmas} after {estimate.draws:,} draws"
    )


def _name(where: np.ndarray, name_of: Any) -> str:
    """The first few entries by name."""
    found = [name_of(tuple(int(i) for i in index)) for index in np.argwhere(where)]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def name_of_class(groups: bool) -> Callable[[tuple[int, ...]], str]:
    """Names of entries [num_classes], or of [groups, num_classes]."""
    return lambda index: f"class {index[1]} in group {index[0]}" if groups else f"class {index[0]}"
