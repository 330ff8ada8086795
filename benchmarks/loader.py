"""Samples per second of the loader: order, gathering, prefetch. Run: python benchmarks/loader.py"""

import time

import numpy as np
from scipy.sparse import random_array

from candax.data import Batches, Examples, Identities, IdentityBatches, prefetch


def measure(name, batches, number=150):
    """Prints the rate of one pass over some batches of the second epoch, its order included."""
    batches[0, 0]
    start, processor = time.perf_counter(), time.process_time()
    for _ in prefetch(batches[1, index] for index in range(number)):
        pass
    wall, processor = time.perf_counter() - start, time.process_time() - processor
    samples = number * batches.batch_size
    print(f"{name}: {samples / wall:,.0f} samples per second, {1e3 * processor / number:.2f} ms of processor per batch")


def main():
    """Both kinds of examples in memory, and identities that are made when they are asked for."""
    rng = np.random.default_rng(0)
    features = random_array((100_000, 50_000), density=6e-4, rng=rng, format="csr", dtype=np.float32)
    labels = random_array((100_000, 20_000), density=1.5e-4, rng=rng, format="csr").astype(bool)
    for matrix in (features, labels):
        matrix.indices, matrix.indptr = matrix.indices.astype(np.int32), matrix.indptr.astype(np.int32)
    examples = Examples(features, labels)
    measure("padded", Batches(examples, 512, 0))
    measure("flat", Batches(examples, 512, 0, flat=True))
    one_of_many = {"num_classes": 100_000, "samples_per_class": 10, "batch_size": 512}
    measure("identities", IdentityBatches(Identities(), **one_of_many, seed=0))


if __name__ == "__main__":
    main()
