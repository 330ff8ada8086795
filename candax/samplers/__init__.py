"""Samplers: what proposes candidate sets. Each factory returns a ``candax.base.Sampler``."""

from candax.samplers.log_uniform import log_uniform
from candax.samplers.static import uniform, unigram
from candax.samplers.top_k import top_k

__all__ = ["log_uniform", "top_k", "uniform", "unigram"]
