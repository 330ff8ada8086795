"""Inverted file with binary quantisation (IVF-BQ): an index for the largest logits, and the sampler of ANN Softmax."""

from candax.samplers.ivf.factory import ivf_index
from candax.samplers.ivf.index import IVFIndex, IVFState
from candax.samplers.ivf.sampler import ivf_bq

__all__ = ["IVFIndex", "IVFState", "ivf_bq", "ivf_index"]
