"""Tables: parameters that are read and trained by rows."""

from flax import nnx


class Table(nnx.Param):
    """An array with one row per class, word or feature.

    A kind of its own beside the other parameters. Under ``nnx.value_and_grad`` it is one of them, with a dense
    gradient; under ``candax.value_and_grad`` it is filtered out first and gets row gradients. Read rows of it with
    ``candax.rows.lookup``; ``table[...]`` is the whole array, whose gradient is dense everywhere.
    """


class Constant(nnx.Variable):
    """An array that belongs to a model but is not trained, such as label counts."""


class DrawCount(nnx.Variable):
    """How often a head has drawn candidates in training; by it ``candax.value_and_grad`` tells heads apart."""
