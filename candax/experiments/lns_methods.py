"""The methods that the LNS paper compares, each a sampler and a loss for a configuration and a number of classes."""

from collections.abc import Callable
from typing import Literal

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.experiments.lns_configurations import Configuration
from candax.recipes.extreme.catalog import LOSSES

MethodName = Literal[
    "top_k",
    "lsh_embedding",
    "lsh_label",
    "frequency",
    "sampled_softmax",
    "nce",
    "lsh_logit",
    "lsh_logit_with_tail",
]

# Candidates an example of TopK, which scores all classes to find them; the paper does not give its number.
_TOP_K = 64


def _top_k(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    del configuration, num_sampled
    return samplers.top_k(_TOP_K), losses.subset_softmax


def _lsh_embedding(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    # The other classes are left out of the softmax, uncorrected: the paper's form.
    return configuration.lsh("embedding", num_sampled), losses.subset_softmax


def _lsh_label(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    return configuration.lsh("label", num_sampled), losses.subset_softmax


def _frequency(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    del configuration
    return samplers.unigram(num_sampled, smoothing=1.0), losses.sampled_softmax


def _sampled_softmax(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    del configuration
    return samplers.log_uniform(num_sampled), losses.sampled_softmax


def _nce(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    del configuration
    return samplers.log_uniform(num_sampled), LOSSES["nce"]


def _lsh_logit(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    # Not the paper's: near the largest logits instead of the likest vectors, and corrected for the classes left out.
    return configuration.lsh("embedding", num_sampled, near="logit"), losses.css


def _lsh_with_tail(configuration: Configuration, num_sampled: int) -> tuple[Sampler, Loss]:
    # Half of the candidates found by hashing and summed as they are, half drawn from the rest.
    half = max(1, num_sampled // 2)
    head = configuration.lsh("embedding", half, near="logit", fill=None)
    return samplers.with_tail(head, samplers.log_uniform(half, num_groups=configuration.groups)), losses.css


METHODS: dict[MethodName, Callable[[Configuration, int], tuple[Sampler, Loss]]] = {
    "top_k": _top_k,
    "lsh_embedding": _lsh_embedding,
    "lsh_label": _lsh_label,
    "frequency": _frequency,
    "sampled_softmax": _sampled_softmax,
    "nce": _nce,
    "lsh_logit": _lsh_logit,
    "lsh_logit_with_tail": _lsh_with_tail,
}
