"""Where the arrays of class-parallel training lie: state and batches, on one process or several."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jaxtyping import Array, PyTree

from candax.training.shards import Layout
from candax.training.step import TrainState


def state_shardings(layout: Layout, state: TrainState, optimizer_specs: Callable[[Any], PyTree]) -> TrainState:
    """A sharding for every array of a state: head tables, what follows their rows, and samplers over the devices.

    Args:
        layout: see ``Layout``.
        state: of ``ShapeDtypeStruct`` leaves.
        optimizer_specs: from a table to a ``PartitionSpec`` for every leaf of its optimizer state.

    Returns:
        The structure of ``state`` with a ``NamedSharding`` in every place.
    """

    def everywhere(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: layout.everywhere(), tree)

    def over_rows(tree: PyTree) -> PyTree:
        return jax.tree.map(lambda _: layout.over_rows(), tree)

    def of_optimizer(name: str, tree: PyTree) -> PyTree:
        if name not in ("class_vectors", "class_biases"):
            return everywhere(tree)
        specs = optimizer_specs(state.tables[name])
        return jax.tree.map(
            lambda spec: NamedSharding(layout.mesh, spec), specs, is_leaf=lambda leaf: isinstance(leaf, PartitionSpec)
        )

    placed = {
        "tables": {
            name: (over_rows if name.startswith("class_") else everywhere)(table)
            for name, table in state.tables.items()
        },
        "counts": over_rows(state.counts),
        "table_optimizers": {name: of_optimizer(name, tree) for name, tree in state.table_optimizers.items()},
        "sampler": over_rows(state.sampler),
    }
    # By leaves: a TrainState of shardings is none that its own type allows.
    leaves: list[NamedSharding] = []
    for field in dataclasses.fields(TrainState):
        leaves += jax.tree.leaves(placed.get(field.name, everywhere(getattr(state, field.name))))
    return jax.tree.unflatten(jax.tree.structure(state), leaves)


def place(layout: Layout, batch: Any, *, uneven: bool = False) -> Any:
    """A batch on the devices: each the examples of its turn. Every process passes the whole batch.

    Args:
        layout: see ``Layout``.
        batch: arrays whose first axis is the examples.
        uneven: whether a number of examples that the devices do not divide is allowed; all devices get all of them.

    Returns:
        The same structure of ``jax.Array``.

    Raises:
        ValueError: where the examples cannot be divided.
    """

    def put(array: Any) -> Array:
        array = array if isinstance(array, jax.Array) else np.asarray(array)
        size = layout.mesh.size
        divides = array.ndim > 0 and array.shape[0] % size == 0
        if not divides and not uneven:
            raise ValueError(
                f"expected arrays of a multiple of {size} examples, the number of devices, got the shape "
                f"{array.shape}. Change the batch size, or train on fewer devices."
            )
        return _put(array, layout.over_rows() if divides else layout.everywhere())

    return jax.tree.map(put, batch)


class Placed:
    """A jitted function of (state, batch) that puts the batch on the devices first; see ``place``."""

    def __init__(self, layout: Layout, function: Any, *, uneven: bool = False) -> None:
        self._layout, self._function, self._uneven = layout, function, uneven

    def __call__(self, state: TrainState, batch: Any) -> Any:
        """Calls the function."""
        return self._function(state, place(self._layout, batch, uneven=self._uneven))

    def lower(self, state: TrainState, batch: Any) -> Any:
        """Lowers it, as ``jax.jit(...).lower``."""
        return self._function.lower(state, place(self._layout, batch, uneven=self._uneven))


def on_all(layout: Layout, array: Array) -> Array:
    """A small array on every device."""
    return _put(array, layout.everywhere())


def _put(array: Any, sharding: NamedSharding) -> Array:
    if sharding.is_fully_addressable:
        return jax.device_put(array, sharding)
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(_put(jax.random.key_data(array), sharding))
    # Each process fills its own part from its own copy: nothing is sent.
    whole = np.asarray(array)
    return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
