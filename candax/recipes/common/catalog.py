"""Samplers and losses by name, for the command line."""

import functools
import math
from collections.abc import Callable
from typing import Literal

from jaxtyping import Array, Float

from candax import losses, samplers
from candax.base import Loss, SampledLogits, Sampler
from candax.models.sampled import reads_vectors, refreshes

# Directions that "buckets" searches for in a step; each search costs as much as scoring all classes for an example.
_NUM_DIRECTIONS = 16
# Codes that "ivf_bq" sees for an example, and how many of them it scores exactly.
_SEEN, _SCORED = 2500, 250
# Steps between two computations of all class vectors, where they are computed and a sampler looks at them.
_RENEWED_EVERY = 50
# The share of what "resampled" scores that it keeps for an example.
_KEPT = 8

SamplerName = Literal[
    "uniform",
    "log_uniform",
    "unigram",
    "top_k",
    "bernoulli",
    "learned_unigram",
    "learned_clusters",
    "midx",
    "in_batch",
    "lsh_embedding",
    "lsh_label",
    "buckets",
    "ivf_bq",
    "kernel",
    "resampled",
]
LossName = Literal[
    "sampled_softmax",
    "css",
    "subset_softmax",
    "importance_sampling",
    "nce",
    "negative_sampling",
    "blackout",
    "ranking",
    "gbce",
    "one_vs_all",
]


# Without smoothing, classes that only the test set has would never be pushed down, and come out on top there.
_smoothed_unigram = functools.partial(samplers.unigram, smoothing=1.0)


def _smoothed_bernoulli(num_sampled: int) -> Sampler:
    return samplers.bernoulli(float(num_sampled), smoothing=1.0)


def _in_batch(num_sampled: int) -> Sampler:
    del num_sampled  # the candidates are the labels of the batch, however many
    return samplers.in_batch()


def _buckets(num_sampled: int) -> Sampler:
    # Half of the candidates by frequency, which stand for the classes in no bucket.
    head = samplers.buckets(
        samplers.exact_index(), max(1, num_sampled // (2 * _NUM_DIRECTIONS)), num_directions=_NUM_DIRECTIONS
    )
    return samplers.with_tail(head, _smoothed_unigram(max(1, num_sampled // 2)))


def _ivf_bq(num_sampled: int) -> Sampler:
    # As with buckets: what is retrieved for the batch, and as many by frequency.
    head = samplers.ivf_bq(
        num_sampled=max(1, num_sampled // 2),
        num_centers=64,
        hm_num=_SEEN,
        num_kept=_SCORED,
        num_groups=1,
        codes="rotated",
        update_every=None,
        schedule=samplers.exponential_schedule(50),
    )
    return samplers.with_tail(head, _smoothed_unigram(max(1, num_sampled // 2)))


def _resampled(num_sampled: int) -> Sampler:
    return samplers.resampled(_smoothed_unigram(num_sampled), max(1, num_sampled // _KEPT))


def _lsh(query: Literal["embedding", "label"], num_sampled: int) -> Sampler:
    # Tables follow the weights only when rebuilt: moving rows at every step costs more time than it gains precision.
    return samplers.lsh(
        query,
        hash=samplers.simhash(),
        # An embedding and a class vector are close if the angle is small, but the loss sees the logit.
        near="logit" if query == "embedding" else "vector",
        num_tables=16,
        num_hashes=8,
        budget=num_sampled,
        fill="uniform",
        num_groups=1,
        update_every=None,
        schedule=samplers.exponential_schedule(50),
    )


def _nce(logits: SampledLogits) -> Float[Array, " B"]:
    # Logits start at 0. With z = 1 that makes every class certain, and a class that is never drawn stays certain: it
    # would come out on top of all that were trained.
    return losses.nce(logits, log_normalizer=math.log(logits.num_classes))


def and_labels(sampler: Sampler) -> Sampler:
    """Candidates of a sampler and the labels of the batch, with the sum of the expected counts.

    Where a sampler's expected counts depend on its draw, or its draw on the batch, there is no such sum: the sampler
    is returned as it is.
    """
    facts = sampler.facts
    joins = facts.draw_independent and not facts.counts_labels and not facts.of_batch
    return samplers.mixture([samplers.in_batch(), sampler]) if joins else sampler


def for_computed(sampler: Sampler, num_classes: int) -> Sampler:
    """A sampler of class vectors that are computed: where it looks at them, it is to see new ones now and then."""
    stale = reads_vectors(sampler, num_classes) and not refreshes(sampler)
    return samplers.every(sampler, _RENEWED_EVERY) if stale else sampler


# Each makes a sampler of so many candidates, which the batch shares; but "top_k" finds some for every example by
# itself, and "resampled" keeps some.
SAMPLERS: dict[SamplerName, Callable[[int], Sampler]] = {
    "uniform": samplers.uniform,
    "log_uniform": samplers.log_uniform,
    "unigram": _smoothed_unigram,
    "top_k": samplers.top_k,
    "bernoulli": _smoothed_bernoulli,
    "learned_unigram": samplers.learned_unigram,
    "learned_clusters": samplers.learned_clusters,
    "midx": functools.partial(samplers.midx, num_groups=1),
    "in_batch": _in_batch,
    "lsh_embedding": functools.partial(_lsh, "embedding"),
    "lsh_label": functools.partial(_lsh, "label"),
    "buckets": _buckets,
    "ivf_bq": _ivf_bq,
    "kernel": functools.partial(samplers.kernel, num_groups=1),
    "resampled": _resampled,
}
# Samplers that can draw without replacement, doing so: a frequent class is in nearly every set, but only once.
DISTINCT: dict[SamplerName, Callable[[int], Sampler]] = {
    "uniform": functools.partial(samplers.uniform, replacement=False),
    "log_uniform": functools.partial(samplers.log_uniform, replacement=False),
    "unigram": functools.partial(_smoothed_unigram, replacement=False),
}
LOSSES: dict[LossName, Loss] = {
    "sampled_softmax": losses.sampled_softmax,
    "css": losses.css,
    "subset_softmax": losses.subset_softmax,
    "importance_sampling": losses.importance_sampling,
    "nce": _nce,
    "negative_sampling": losses.negative_sampling,
    "blackout": losses.blackout,
    "ranking": losses.ranking,
    "gbce": losses.gbce,
    "one_vs_all": losses.one_vs_all,
}
