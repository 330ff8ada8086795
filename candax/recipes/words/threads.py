"""Threads with which JAX computes the small steps of word2vec on a CPU."""

import importlib.util
import os

import jax

# What XLA asks for the number of its threads, once, when JAX is used for the first time.
_VARIABLES = ("PJRT_NPROC", "NPROC")
# On two cores, with 32 candidates for 32 places: with 300 coordinates a step takes .87 of the time with two threads
# instead of one, with 200 as much, with 100 1.1 times.
_WIDEST = 200
# What devices other than the CPU come in.
_ACCELERATORS = ("jax_plugins", "libtpu")


def one_thread(dim: int) -> bool:
    """Lets JAX compute with one thread from here on, where steps are so small that two are no quicker.

    A step takes a millisecond and has some 150 operations: to hand parts of them to another processor and wait for it
    takes longer than it brings, and now and then three times as long. The other processor makes the batches.
    Without effect where JAX has been used already, and left alone where there are other devices than a CPU, or where
    ``PJRT_NPROC`` or ``NPROC`` say a number of threads.

    Args:
        dim: coordinates of a vector.

    Returns:
        Whether JAX was asked for one thread.
    """
    on_cpu = os.environ.get("JAX_PLATFORMS") == "cpu" or not any(map(importlib.util.find_spec, _ACCELERATORS))
    if dim > _WIDEST or not on_cpu or any(name in os.environ for name in _VARIABLES):
        return False
    os.environ[_VARIABLES[0]] = "1"
    try:
        jax.devices()
    finally:  # not for other programs that this one starts
        del os.environ[_VARIABLES[0]]
    return True
