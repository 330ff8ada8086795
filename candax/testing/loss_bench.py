"""A loss on the bench, and how what it gives is compared."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from candax.base import Loss, SampledLogits
from candax.testing.bench import Case
from candax.testing.broken import Clock, LawBroken
from candax.testing.problems import B, S

PARTS = ("the loss", "the gradient of true logits", "the gradient of sampled logits")


class LossBench:
    """A loss on the bench, compiled once per shape of its logits."""

    def __init__(self, loss: Loss, sampler: Any, case: Case, clock: Clock) -> None:
        self.loss, self.sampler, self.case, self.clock = loss, sampler, case, clock

        def total(true: Array, sampled: Array, logits: SampledLogits) -> tuple[Array, Array]:
            values = loss(dataclasses.replace(logits, true=true, sampled=sampled))
            return jnp.sum(values), values

        def value_and_gradient(logits: SampledLogits) -> tuple[Array, Array, Array]:
            value_and_grad = jax.value_and_grad(total, argnums=(0, 1), has_aux=True)
            (_, values), (of_true, of_sampled) = value_and_grad(logits.true, logits.sampled, logits)
            return values, of_true, of_sampled

        self._value_and_gradient, self._values = jax.jit(value_and_gradient), jax.jit(loss)

    def check_types(self, logits: SampledLogits) -> None:
        """The loss is one float32 number per example: all other laws rely on it."""
        values: Any = jax.eval_shape(self.loss, logits)
        if not hasattr(values, "shape") or not hasattr(values, "dtype"):
            raise TypeError(f"loss: expected an array float32[B]; it returned {type(values).__name__}")
        if values.shape != logits.true.shape[:1]:
            raise LawBroken(
                f"the loss has shape {values.shape} where {logits.true.shape[:1]} is expected, one number per example: "
                f"do not reduce over the batch"
            )
        if values.dtype != jnp.float32:
            raise LawBroken(f"the loss is {values.dtype} where float32 is expected")

    def value_and_gradient(self, logits: SampledLogits) -> tuple[np.ndarray, ...]:
        """The loss [B] and its gradients with respect to true and sampled logits."""
        return tuple(np.asarray(part) for part in self._value_and_gradient(logits))

    def values(self, logits: SampledLogits) -> np.ndarray:
        """The loss [B]; for logits of the usual shape, by the program already compiled for gradients."""
        usual = logits.sampled.shape == (B, S)
        return self.value_and_gradient(logits)[0] if usual else np.asarray(self._values(logits))


def check_close(got: Any, wanted: Any, rtol: float, atol: float, what: str) -> None:
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    off = ~np.isclose(got, wanted, rtol=rtol, atol=atol)
    if np.any(off):
        difference = np.where(off, np.where(np.isnan(got), np.inf, np.abs(got - wanted)), -1)
        worst = tuple(int(i) for i in np.unravel_index(np.argmax(difference), got.shape))
        share = f" ({100 * (got[worst] / wanted[worst] - 1):+.2f} %)" if wanted[worst] else ""
        raise LawBroken(
            f"{what}: {got[worst]:.6g} where {wanted[worst]:.6g} is expected{share} at {worst}, and {np.sum(off)} of "
            f"{off.size} entries differ"
        )


def check_all(fine: Any, what: str) -> None:
    if not np.all(fine):
        where = tuple(int(i) for i in np.argwhere(~np.asarray(fine))[0])
        raise LawBroken(f"{what}, at {where} first and in {np.sum(~np.asarray(fine))} of {np.size(fine)} entries")
