"""Tables: variables that are read and trained by rows."""

from flax import nnx


class Table(nnx.Variable):
    """An array with one row a class, word or feature, trained row by row and never differentiated whole.

    A kind of its own next to ``nnx.Param``, so that ``nnx.split(model, Table, ...)`` keeps tables out of the gradient
    and the dense optimizer: see ``candax.rows``.
    """


class Constant(nnx.Variable):
    """An array that belongs to a model but is not trained, such as label counts."""
