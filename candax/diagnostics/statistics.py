"""Means, variances and root mean squares over draws, with standard errors; NumPy in float64.

The examples of a batch share their draws, so they are not independent observations: each statistic first averages over
the examples within a draw, and its standard error comes from the variation that is left from draw to draw. This is the
error of a finite number of draws for *these* examples, not that of choosing these examples.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float


class Measure(NamedTuple):
    """A number, or an array of them, and its standard error over draws."""

    value: Float[np.ndarray, "*shape"]
    standard_error: Float[np.ndarray, "*shape"]


NOTHING = Measure(np.full((), np.nan), np.full((), np.nan))


def mean(per_draw: Float[np.ndarray, " D"]) -> Measure:
    """The mean over draws, and the standard deviation over draws divided by sqrt(D).

    Example:
        >>> mean(np.array([1.0, 3.0]))
        Measure(value=array(2.), standard_error=array(1.))
    """
    # The first draw is subtracted, so that draws that are all equal have a spread of exactly 0.
    spread = np.std(per_draw - per_draw[0], ddof=1)
    return Measure(np.asarray(per_draw.mean()), np.asarray(spread / np.sqrt(len(per_draw))))


def variance(values: Float[np.ndarray, "D B"]) -> Measure:
    """The mean over examples of the unbiased variance over draws, and its jackknife standard error over draws.

    Without draw d the mean variance is ``((D - 1) V - D / (D - 1) u_d) / (D - 2)``, with V that of all draws and u_d
    the mean over examples of the squared deviation of draw d from the mean over draws.

    Example:
        >>> variance(np.array([[1.0], [2.0], [3.0]])).value
        array(1.)

    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), equation 11.5.
    """
    draws, values = len(values), values - values[0]
    squares = np.mean((values - values.mean(axis=0)) ** 2, axis=1)
    without = -draws / ((draws - 1) * (draws - 2)) * squares
    spread = np.sqrt((draws - 1) / draws * np.sum((without - without.mean()) ** 2))
    return Measure(np.asarray(squares.sum() / (draws - 1)), np.asarray(spread))


def root(squares: Measure) -> Measure:
    """The root of a mean square, its error by the delta method; both are 0 where the mean square is 0.

    Example:
        >>> root(Measure(np.array(4.0), np.array(1.0)))
        Measure(value=array(2.), standard_error=array(0.25))
    """
    value = np.sqrt(squares.value)
    error = np.divide(squares.standard_error, 2 * value, out=np.zeros_like(value), where=value != 0)
    return Measure(np.asarray(value), np.asarray(error))


def clipped_root(squares: Measure) -> Measure:
    """The root of an estimate of a square; 0 where noise has made the estimate negative.

    The delta method fails near 0, so the standard error is half the distance of the roots one standard error above and
    below.

    Example:
        >>> clipped_root(Measure(np.array(-1.0), np.array(5.0)))
        Measure(value=array(0.), standard_error=array(1.))
    """
    above, value, below = (
        np.sqrt(np.maximum(squares.value + sign * squares.standard_error, 0.0)) for sign in (1, 0, -1)
    )
    return Measure(np.asarray(value), np.asarray((above - below) / 2))


def squared_bias(products: Float[np.ndarray, " H"]) -> Measure:
    """|E g - g_full|^2 from products <g_d - g_full, m> of draws d, with m the mean deviation of as many other draws.

    |mean deviation|^2 would count the noise of the mean as bias; a product of two independent halves does not: it is
    unbiased, and may be negative. Its standard error is the square root of 2 times what the products of one half show,
    because the other half varies too: right where there is a bias, and larger than the truth by sqrt 2 where not.

    Example:
        >>> squared_bias(np.array([0.25, 0.25])).value
        array(0.25)
    """
    value, error = mean(products)
    return Measure(value, np.asarray(np.sqrt(2) * error))


def mean_where(values: Float[np.ndarray, "D B"], counted: Bool[np.ndarray, " B"]) -> Measure:
    """The mean over draws and the examples that count; nan where none does."""
    return mean(values[:, counted].mean(axis=1)) if counted.any() else NOTHING
