"""Inverted file with binary quantisation (IVF-BQ): an index for the largest logits, and the sampler of ANN Softmax."""
