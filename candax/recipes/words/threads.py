"""Threads with which JAX computes the small steps of word2vec on a CPU."""

import os

import jax

# What XLA asks for the number of its threads, once, when JAX computes for the first time.
_VARIABLE = "PJRT_NPROC"
# With 300 coordinates two threads take .85 of the time of one; with 200 as much as one, with 100 1.1 times.
_WIDEST = 200


def one_thread(dim: int) -> None:
    """Lets JAX compute with one thread from here on, where the vectors are so short that several are no quicker.

    A step takes a millisecond and has some 150 operations: to hand parts of them to another processor and wait for it
    takes longer than it brings, and now and then three times as long. The other processor makes the batches.
    Without effect where JAX has computed something already; a number that ``PJRT_NPROC`` says stays.

    Args:
        dim: coordinates of a vector.
    """
    if dim > _WIDEST or _VARIABLE in os.environ:
        return
    os.environ[_VARIABLE] = "1"
    try:
        jax.devices()
    finally:  # not for other programs that this one starts
        del os.environ[_VARIABLE]
