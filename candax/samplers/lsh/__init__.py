"""Locality sensitive hashing: hash families, tables that follow the weights, and samplers on top."""

from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.sampler import lsh
from candax.samplers.lsh.search import lsh_index, lsh_top_k
from candax.samplers.lsh.simhash import simhash

__all__ = ["dwta", "lsh", "lsh_index", "lsh_top_k", "simhash"]
