"""Two-gate tests: |mean - truth| < 5 standard errors, and 5 standard errors < delta * |truth|.

The second gate makes the first one mean something: a test that passes has seen that there is no bias of delta.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tests.compilation import optimised

CHUNK = 1 << 14
# Variances are estimated from one chunk; rare classes may vary more than it shows.
_MARGIN = 1.25


class Estimate(NamedTuple):
    """Mean over draws, its standard error, and the number of draws."""

    mean: np.ndarray
    stderr: np.ndarray
    draws: int


def check_mean(
    draw: Callable[[jax.Array], jax.Array], truth: np.ndarray, *, delta: float, seed: int, max_draws: int = 40_000_000
) -> Estimate:
    """Asserts that E[draw(key)] equals ``truth`` wherever truth is not 0, and that draws are 0 wherever it is.

    The number of draws comes from a pilot chunk, so that the second gate is met.
    """
    truth = np.asarray(truth, np.float64)

    @optimised
    def chunk(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        values = jax.vmap(draw)(jax.random.split(key, CHUNK))
        return jnp.sum(values, axis=0), jnp.sum(values**2, axis=0)

    def moments(key: jax.Array) -> tuple[np.ndarray, np.ndarray]:
        return tuple(np.asarray(total, np.float64) / CHUNK for total in chunk(key))  # type: ignore[return-value]

    pilot_key, key = jax.random.split(jax.random.key(seed))
    mean, square = moments(pilot_key)
    assert np.all(np.isfinite(mean)), f"draws are not finite: {mean}"
    scale = np.where(truth == 0, 1.0, np.abs(truth))
    spread = np.where(truth == 0, 0.0, np.maximum(square - mean**2, 0) / (delta * scale) ** 2)
    wanted = 25 * _MARGIN * float(np.max(spread))
    assert wanted <= max_draws, f"{wanted:.3g} draws would be needed: choose a case with fewer or likelier classes"
    chunks = max(2, int(np.ceil(wanted / CHUNK)))
    all_moments = [moments(jax.random.fold_in(key, i)) for i in range(chunks)]
    mean, square = (np.mean(part, axis=0) for part in zip(*all_moments, strict=True))
    estimate = Estimate(mean, np.sqrt(np.maximum(square - mean**2, 0) / (chunks * CHUNK)), chunks * CHUNK)
    check_two_gates(estimate, truth, delta)
    return estimate


def check_two_gates(estimate: Estimate, truth: np.ndarray, delta: float) -> None:
    """The assertions alone."""
    mean, stderr = estimate.mean, estimate.stderr
    impossible = (truth == 0) & (mean != 0)
    assert not np.any(impossible), f"drawn outside the support at {np.argwhere(impossible).tolist()}"
    # The last term is for sums in float32 where nothing varies.
    biased = np.abs(mean - truth) > 5 * stderr + 1e-5 * np.abs(truth)
    assert not np.any(biased), (
        f"biased at {np.argwhere(biased).tolist()}: mean {mean[biased]}, truth {np.asarray(truth)[biased]}, "
        f"standard error {stderr[biased]} after {estimate.draws} draws"
    )
    blunt = 5 * stderr > delta * np.abs(truth)
    assert not np.any(blunt), f"too few draws to see a bias of {delta}: 5 standard errors are {5 * stderr[blunt]}"
