"""What every loss on ``SampledLogits`` shares: corrections, removal of hits, and reductions that ignore the masked.

True and sampled logits are reduced separately and the two numbers added: concatenating them would turn reductions of
size [B] into all-to-all exchanges when the samples are sharded over devices.
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Loss, Margin, SampledLogits
from candax.cosines import widened

_INNER, _COSINES, _MARGIN = "made_of_loss", "takes_cosines", "made_of_margin"

Reduction: TypeAlias = Literal["sum", "mean"]


def made_of(made: Loss, loss: Loss, *, margin: Margin | None = None) -> Loss:
    """``made``, which is said to be made of ``loss``: what must hold for a loss must hold where it is wrapped, too.

    ``margin``: what takes cosines and hands logits to ``loss``.
    """
    vars(made)[_INNER] = loss
    vars(made)[_MARGIN] = margin
    vars(made)[_COSINES] = margin is not None or takes_cosines(loss)
    return made


def takes_cosines(loss: Callable[..., Any]) -> bool:
    """Whether a loss has a margin, so that what it is given are cosines and no logits yet."""
    loss = loss.func if isinstance(loss, functools.partial) else loss
    return getattr(loss, _COSINES, False)


def innermost(loss: Callable[..., Any]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """The loss that others were made of, and the keywords that it is called with.

    Example:
        >>> from functools import partial
        >>> import candax as cx
        >>> loss = cx.losses.each_label(partial(cx.losses.css, complement="redraw"))
        >>> found, keywords = innermost(loss)
        >>> found is cx.losses.css, keywords
        (True, {'complement': 'redraw'})
    """
    keywords: dict[str, Any] = {}
    while True:
        if isinstance(loss, functools.partial):
            keywords, loss = {**loss.keywords, **keywords}, loss.func
        elif (inner := getattr(loss, _INNER, None)) is not None:
            loss = inner
        else:
            return loss, keywords


def functions_in(loss: Callable[..., Any]) -> list[Callable[..., Any]]:
    """The functions that a loss was made of, margins among them.

    Example:
        >>> from functools import partial
        >>> import candax as cx
        >>> loss = cx.losses.with_margin(partial(cx.losses.arcface, scale=8.0), cx.losses.css)
        >>> cx.losses.arcface in functions_in(cx.losses.over_all_classes(loss))
        True
    """
    parts: list[Callable[..., Any]] = []
    left: list[Any] = [loss]
    while left:
        part = left.pop()
        if isinstance(part, functools.partial):  # over_all_classes gives the loss as its first argument
            left += [part.func, *part.args]
        elif callable(part):
            parts.append(part)
            left += [getattr(part, _INNER, None), getattr(part, _MARGIN, None)]
    return parts


def minus_log_expected_count(
    logits: Float[Array, "B n"], log_expected_count: Float[Array, "B n"]
) -> Float[Array, "B n"]:
    """``logits - log_expected_count``, without gradient to the counts.

    Where the count is 0 (-inf in logs) the logit stays as it is: a class that its sampler cannot draw has no
    correction, and as a true class it must still learn. A count that is NaN is a fault, and makes the loss NaN.
    """
    impossible = log_expected_count == -jnp.inf
    correction = jax.lax.stop_gradient(jnp.where(impossible, 0.0, log_expected_count))
    return jnp.where(impossible, logits, logits - correction)


def without_hits(logits: SampledLogits) -> Bool[Array, "B S"]:
    """The sampled slots that are real and are none of the true classes beside them."""
    return logits.sampled_mask & ~logits.hits


def negatives(logits: SampledLogits) -> Bool[Array, "B S"]:
    """The sampled slots that are real and are no true class of their example, labels without a slot included."""
    keep = without_hits(logits)
    return keep if logits.more_hits is None else keep & ~logits.more_hits


def number_of_labels(logits: SampledLogits) -> Int[Array, " B"]:
    """True classes of each example, those without a slot included."""
    return jnp.sum(logits.true_mask, axis=1) if logits.num_labels is None else logits.num_labels


def mean_over_labels(values: Float[Array, "B T"], mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """Mean over the labels of each example, 0 where it has none: every label has the target 1 / |Y|."""
    return reduce_over_samples(values, mask, "mean")


def reduce_over_samples(
    values: Float[Array, "B S"], keep: Bool[Array, "B S"], reduction: Reduction
) -> Float[Array, " B"]:
    """Sum or mean over the samples that are kept, 0 where there are none.

    The values of the others must be finite, and so must their gradients: a NaN comes back out of the gradient of a
    function that had seen it, however its value is masked.
    """
    total = jnp.sum(jnp.where(keep, widened(values), 0.0), axis=1)
    return total if reduction == "sum" else total / jnp.maximum(jnp.sum(keep, axis=1), 1).astype(total.dtype)


def zero_without_labels(values: Float[Array, " B"], true_mask: Bool[Array, "B T"]) -> Float[Array, " B"]:
    """An example without labels costs nothing and has no gradient."""
    return jnp.where(jnp.any(true_mask, axis=1), values, 0.0)


@jax.custom_jvp
def softplus(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """``log(1 + exp(x))`` for finite x, with sigmoid(x) = exp(x - softplus(x)) as its derivative.

    ``jax.nn.softplus`` is right at infinities too, at more than twice the cost of a loss and its gradient.
    """
    e = jnp.exp(-jnp.abs(x))
    return jnp.maximum(x, 0) + (_log1p(e) if x.dtype == jnp.float32 else jnp.log1p(e))


softplus.defjvps(lambda tangent, value, x: tangent * jnp.exp(x - value))


def _log1p(e: Float[Array, "..."]) -> Float[Array, "..."]:
    """``log(1 + e)`` of float32 from 0 to 1, right to its last bits at half the cost of XLA's on a CPU."""
    z = e / (2 + e)  # log(1 + e) = 2 artanh(z), and z is at most 1 / 3
    square = z * z
    series = functools.reduce(lambda total, n: total * square + 1 / n, range(13, 0, -2), jnp.full_like(e, 1 / 15))
    return 2 * z * series


def log_sum_exp(
    true: Float[Array, "B T"], true_mask: Bool[Array, "B T"], sampled: Float[Array, "B S"], keep: Bool[Array, "B S"]
) -> Float[Array, " B"]:
    """The log of the sum of exp over the unmasked true and sampled logits; 0 for an example that has neither.

    Masked entries may hold anything, NaN included: neither value nor gradient sees them. Others make it NaN.
    """
    true = jnp.where(true_mask, widened(true), -jnp.inf)
    sampled = jnp.where(keep, widened(sampled), -jnp.inf)
    top = jax.lax.stop_gradient(jnp.maximum(_max(true), _max(sampled)))
    # Compared by == so that NaN, which is neither above nor below, stays NaN and is no loss of 0.
    top = jnp.where(top == -jnp.inf, 0.0, top)
    total = jnp.sum(jnp.exp(true - top[:, None]), axis=1) + jnp.sum(jnp.exp(sampled - top[:, None]), axis=1)
    return jnp.where(total == 0, 0.0, jnp.log(jnp.where(total == 0, 1.0, total)) + top)


def _max(values: Float[Array, "B n"]) -> Float[Array, " B"]:
    return jnp.max(values, axis=1, initial=-jnp.inf)
