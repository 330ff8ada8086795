"""Samplers: what proposes candidate sets. Each factory returns a ``candax.base.Sampler``."""

from candax.samplers.bernoulli import bernoulli
from candax.samplers.buckets import buckets
from candax.samplers.combinators import every, mixture, with_tail
from candax.samplers.common.schedules import exponential_schedule
from candax.samplers.grouping import classes_per_example, grouped
from candax.samplers.hashing_forest import forest_index, hashing_forest
from candax.samplers.in_batch import in_batch
from candax.samplers.index_files import load_index, save_index
from candax.samplers.ivf.factory import ivf_bq, ivf_index
from candax.samplers.kernel import kernel
from candax.samplers.knn_label import knn_label, label_index
from candax.samplers.learned_clusters import learned_clusters
from candax.samplers.learned_unigram import learned_unigram
from candax.samplers.log_uniform import log_uniform
from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.sampler import lsh
from candax.samplers.lsh.search import lsh_index, lsh_top_k
from candax.samplers.lsh.simhash import simhash
from candax.samplers.midx import midx
from candax.samplers.partial_fc import partial_fc
from candax.samplers.resampling import resampled
from candax.samplers.retrieved import retrieved
from candax.samplers.sharded import sharded
from candax.samplers.static import uniform, unigram
from candax.samplers.top_k import exact_index, top_k

__all__ = [
    "bernoulli",
    "buckets",
    "classes_per_example",
    "dwta",
    "every",
    "exact_index",
    "exponential_schedule",
    "forest_index",
    "grouped",
    "hashing_forest",
    "in_batch",
    "ivf_bq",
    "ivf_index",
    "kernel",
    "knn_label",
    "label_index",
    "learned_clusters",
    "learned_unigram",
    "load_index",
    "log_uniform",
    "lsh",
    "lsh_index",
    "lsh_top_k",
    "midx",
    "mixture",
    "partial_fc",
    "resampled",
    "retrieved",
    "save_index",
    "sharded",
    "simhash",
    "top_k",
    "uniform",
    "unigram",
    "with_tail",
]
