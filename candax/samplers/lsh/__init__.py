"""Locality sensitive hashing: hash families, tables that follow the weights, and samplers on top."""
