"""Class vectors that a module of the user's computes from what is known about a class."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.rows.lookups import without_gradients
from candax.rows.tables import Constant, Table

# How many class vectors are computed at a time when all are needed.
_BLOCK = 1024


class ComputedVectors(nnx.Module):
    """Class vectors ``fn(ids[n]) -> [n, dim]``, where a table would be too large or could not know new classes.

    Args:
        function: a module, or a function that holds no parameters.
        num_classes: classes.
    """

    def __init__(self, function: Callable[..., Float[Array, "n dim"]], num_classes: int) -> None:
        if not isinstance(function, nnx.Module) and (held := _held_modules(function)):
            raise ValueError(
                f"expected vectors= to be an nnx.Module, or a function without parameters; got a function that holds "
                f"{held}, whose gradients would be lost. Give the module itself: class Items(nnx.Module): ... def "
                "__call__(self, ids): ..."
            )
        has_statistics = any(isinstance(node, nnx.BatchNorm) for _, node in nnx.iter_graph(function))
        if has_statistics and not takes_where(function):
            raise ValueError(
                "expected vectors= with batch statistics to take (ids, where): some of the ids are fillers, which "
                "must not count in them. Pass where on to nnx.BatchNorm as mask=where[:, None]."
            )
        self.function = function
        self.num_classes = num_classes
        self.snapshot: Constant | None = None

    @property
    def dim(self) -> int:
        """Coordinates of a vector."""
        ids = jax.ShapeDtypeStruct((1,), jnp.int32)
        graph, state = nnx.split(self)
        return jax.eval_shape(lambda state, ids: _evaluated(graph, state, ids), state, ids).shape[-1]

    def of(self, ids: Int[Array, " n"], where: Array | None = None) -> Float[Array, "n dim"]:
        """Vectors of some classes."""
        if not takes_where(self.function):
            return self.function(ids)
        return self.function(ids, where=jnp.ones(ids.shape, bool) if where is None else where)

    def all(self) -> Float[Array, "num_classes dim"]:
        """Vectors of all classes, computed in blocks and in evaluation mode; without a gradient."""
        graph, state = nnx.split(self)
        state = jax.lax.stop_gradient(state)
        blocks = -(-self.num_classes // _BLOCK)
        ids = jnp.minimum(jnp.arange(blocks * _BLOCK, dtype=jnp.int32), self.num_classes - 1).reshape(blocks, _BLOCK)
        rows = jax.lax.map(lambda some: _evaluated(graph, state, some), ids)
        return rows.reshape(blocks * _BLOCK, -1)[: self.num_classes]

    def keep(self) -> None:
        """Computes all vectors and keeps them for a sampler that reads them; again at each refresh."""
        if self.snapshot is None:
            self.snapshot = nnx.data(Constant(self.all()))
        else:
            self.snapshot.set_value(self.all())

    def kept(self) -> Float[Array, "num_classes dim"]:
        """The vectors as of the last refresh; where none are kept, an array with as many rows and no columns."""
        return jnp.zeros((self.num_classes, 0)) if self.snapshot is None else self.snapshot[...]


def takes_where(function: Callable[..., Any]) -> bool:
    """Whether a function of ids has an argument ``where``."""
    try:
        return "where" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _evaluated(graph: Any, state: Any, ids: Int[Array, " n"]) -> Float[Array, "n dim"]:
    """Vectors of some classes in evaluation mode, also inside a transformation within ``value_and_grad``."""
    made = nnx.merge(graph, state, copy=True)
    made.eval()
    with without_gradients():
        return made.of(ids)


def _held_modules(function: Any) -> list[str]:
    """Modules and variables that a plain function holds: bound, in its closure or in a partial."""
    held = [getattr(function, "__self__", None)]
    held += [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    held += [*getattr(function, "args", ()), *getattr(function, "keywords", {}).values()]
    return sorted({type(value).__name__ for value in held if isinstance(value, nnx.Pytree | nnx.Variable | Table)})
