"""The methods that the LNS paper compares, each a sampler and a loss for a configuration and a number of classes."""

from collections.abc import Callable
from typing import Literal

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.experiments.lns_configurations import Configuration
from candax.recipes.common.catalog import LOSSES

MethodName = Literal[
    "top_k", "lsh_embedding", "lsh_label", "frequency", "sampled_softmax", "nce", "lsh_logit", "lsh_logit_with_tail"
]
# Candidates per example of TopK, which scores all classes to find them; the paper does not give its number.
_TOP_K = 64


def _lsh_with_tail(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    # Half of the candidates found by hashing and summed as they are, half drawn from the rest.
    half = max(1, num_sampled // 2)
    head = configuration.lsh("embedding", half, near="logit", fill=None)
    return samplers.with_tail(head, samplers.log_uniform(half, num_groups=configuration.groups)), losses.css


METHODS: dict[MethodName, Callable[[Configuration, int], tuple[Sampler, Loss]]] = {
    "top_k": lambda configuration, number: (samplers.top_k(_TOP_K), losses.subset_softmax),
    # The other classes are left out of the softmax, uncorrected: the paper's form.
    "lsh_embedding": lambda configuration, number: (configuration.lsh("embedding", number), losses.subset_softmax),
    "lsh_label": lambda configuration, number: (configuration.lsh("label", number), losses.subset_softmax),
    "frequency": lambda configuration, number: (samplers.unigram(number, smoothing=1.0), losses.sampled_softmax),
    "sampled_softmax": lambda configuration, number: (samplers.log_uniform(number), losses.sampled_softmax),
    "nce": lambda configuration, number: (samplers.log_uniform(number), LOSSES["nce"]),
    # Not the paper's: near the largest logits instead of the likest vectors, and corrected for the classes left out.
    "lsh_logit": lambda configuration, number: (configuration.lsh("embedding", number, near="logit"), losses.css),
    "lsh_logit_with_tail": _lsh_with_tail,
}
