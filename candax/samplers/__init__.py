"""Samplers: what proposes candidate sets. Each factory returns a ``candax.base.Sampler``."""

from candax.samplers.bernoulli import bernoulli
from candax.samplers.combinators import every, mixture, with_tail
from candax.samplers.in_batch import in_batch
from candax.samplers.learned_unigram import learned_unigram
from candax.samplers.log_uniform import log_uniform
from candax.samplers.lsh import dwta, exponential_schedule, lsh, lsh_top_k, simhash
from candax.samplers.static import uniform, unigram
from candax.samplers.top_k import top_k

__all__ = [
    "bernoulli",
    "dwta",
    "every",
    "exponential_schedule",
    "in_batch",
    "learned_unigram",
    "log_uniform",
    "lsh",
    "lsh_top_k",
    "mixture",
    "simhash",
    "top_k",
    "uniform",
    "unigram",
    "with_tail",
]
