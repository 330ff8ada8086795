"""What is diagnosed: pairs of a sampler and a loss."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

from candax.base import Loss, Sampler
from candax.checks import checked
from candax.losses import css, importance_sampling, sampled_softmax, subset_softmax

_LIKELIHOODS = (css, importance_sampling, sampled_softmax, subset_softmax)


@dataclasses.dataclass(frozen=True)
class Method:
    """A sampler for any number of samples, and a loss.

    Attributes:
        sampler_name: for tables and pictures.
        loss_name: the same.
        sampler: ``(num_sampled) -> Sampler``. What the number means is up to the sampler.
        loss: any loss on ``SampledLogits``; hyperparameters by ``functools.partial``.
        is_likelihood: whether ``exp(-loss)`` estimates p(true), so that Z, log Z and p(true) have estimates. None:
            true for ``css``, ``sampled_softmax``, ``subset_softmax`` and ``importance_sampling``, false for others.

    Example:
        >>> import candax as cx
        >>> redraw = functools.partial(cx.losses.css, complement="redraw")
        >>> Method("uniform", "css", cx.samplers.uniform, redraw).likelihood
        True
        >>> Method("uniform", "nce", cx.samplers.uniform, cx.losses.nce).likelihood
        False
    """

    sampler_name: str
    loss_name: str
    sampler: Callable[[int], Sampler]
    loss: Loss
    is_likelihood: bool | None = None

    @property
    def name(self) -> str:
        """Both names."""
        return f"{self.sampler_name}, {self.loss_name}"

    @property
    def likelihood(self) -> bool:
        """``is_likelihood``, or what is known of the loss if ``is_likelihood`` is None."""
        if self.is_likelihood is not None:
            return self.is_likelihood
        loss: Callable[..., object] = self.loss
        while isinstance(loss, functools.partial):
            loss = loss.func
        return loss in _LIKELIHOODS


@checked
def pairs(samplers: Mapping[str, Callable[[int], Sampler]], losses: Mapping[str, Loss]) -> list[Method]:
    """Every sampler with every loss.

    Args:
        samplers: name -> ``(num_sampled) -> Sampler``.
        losses: name -> loss.

    Returns:
        One ``Method`` per pair, sampler by sampler.

    Example:
        >>> import candax as cx
        >>> methods = pairs({"uniform": cx.samplers.uniform}, {"css": cx.losses.css, "nce": cx.losses.nce})
        >>> [method.name for method in methods]
        ['uniform, css', 'uniform, nce']
    """
    return [
        Method(sampler_name, loss_name, sampler, loss)
        for sampler_name, sampler in samplers.items()
        for loss_name, loss in losses.items()
    ]
