"""Batches over a mesh: which devices hold which examples, and what is numbered within the part of one process."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Int

from candax.rows.lookups import integer_ids
from candax.rows.tables import placement_of
from candax.training.feed import field, has_some


def mesh_of(model: nnx.Module) -> Mesh | None:
    """The mesh of a model's tables, None without one."""
    meshes = {place.mesh for place in _placements(model)}
    if len(meshes) > 1:
        raise ValueError(f"expected all tables of a model on one mesh, got {len(meshes)} meshes.")
    return next(iter(meshes), None)


def spread(model: nnx.Module, mesh: Mesh, batch: Any, *, renumbers: bool) -> Any:
    """A batch over the devices of a mesh: along the axes without classes or, without such, along all.

    Args:
        model: whose tables lie on the mesh.
        mesh: devices.
        batch: arrays on the host; with several processes, the part of this one.
        renumbers: whether the loss function does as ``renumbered`` with pairs of ``more_labels``.

    Raises:
        ValueError: with several processes, for sizes that do not fit, and for what numbers the examples of one part.
    """
    axes = _axes_of(model, mesh)
    if jax.process_count() == 1:
        return jax.tree.map(lambda leaf: jax.device_put(leaf, _sharding(mesh, axes, np.shape(leaf))), batch)
    _check_numbers(batch, renumbers)
    pairs = field(batch, "more_labels")
    return jax.tree.map(
        lambda leaf: _of_processes(mesh, axes, _padded(leaf, mesh, axes) if leaf is pairs else leaf), batch
    )


def renumbered(model: nnx.Module, pairs: Int[Array, "M 2"], number: int) -> Int[Array, "M 2"]:
    """Pairs of ``more_labels`` from all processes, each of which has numbered the predictions of its own part from 0.

    Args:
        model: whose tables lie on the mesh that the batch is spread over.
        pairs: those of all processes, by ``spread``.
        number: of predictions, of all processes together.
    """
    mesh, pairs = mesh_of(model), integer_ids(pairs, "more_labels")
    if mesh is None or pairs.ndim != 2 or not len(pairs):  # which the loss refuses, or takes as nothing
        return pairs
    blocks = _blocks(mesh, _axes_of(model, mesh))
    of_block = number // len(blocks)
    mine = jnp.asarray(blocks)[jnp.arange(len(pairs)) * len(blocks) // len(pairs)]
    within, at = jnp.divmod(pairs[:, 0], of_block)
    block = jnp.take_along_axis(mine, jnp.clip(within, 0, blocks.shape[1] - 1)[:, None], axis=1)[:, 0]
    # A number beyond the part is out of range also where the other processes have a prediction of that number.
    known = jnp.where(within < blocks.shape[1], block * of_block + at, number)
    return jnp.stack([jnp.where(pairs[:, 0] < 0, pairs[:, 0], known), pairs[:, 1]], axis=1)


def _check_numbers(batch: Any, renumbers: bool) -> None:
    processes = jax.process_count()
    if has_some(batch, "feature_examples"):
        raise ValueError(
            f"expected batches without feature_examples with {processes} processes, as each numbers the examples of "
            "its own part of the batch: make Batches without flat=True."
        )
    if has_some(batch, "more_labels") and not renumbers:
        raise ValueError(
            f"expected batches without more_labels with {processes} processes and a loss_fn of your own, as each "
            "process numbers the predictions of its own part of the batch: leave loss_fn out, or number them over all "
            "processes and give them another name."
        )


def _sharding(mesh: Mesh, axes: tuple[str, ...], shape: tuple[int, ...]) -> NamedSharding:
    """Along the first dimension, where the devices divide it."""
    divides = shape and shape[0] and shape[0] % _number(mesh, axes) == 0
    return NamedSharding(mesh, PartitionSpec(axes) if divides else PartitionSpec())


def _of_processes(mesh: Mesh, axes: tuple[str, ...], leaf: Any) -> Array:
    """An array of which each process gives a part; one without rows, such as no ``more_labels``, is so in each."""
    shape, processes = np.shape(leaf), jax.process_count()
    whole = (shape[0] * processes, *shape[1:]) if shape else ()
    sharding, number = _sharding(mesh, axes, whole), _number(mesh, axes)
    if sharding.spec == PartitionSpec() and (not shape or shape[0]):
        raise ValueError(
            f"expected batches whose size over all {processes} processes is a multiple of the {number} devices of "
            f"{axes}, got {shape} in each: make the batch of each process a multiple of {number // processes}."
        )
    return jax.make_array_from_process_local_data(sharding, np.asarray(leaf))


def _padded(pairs: Any, mesh: Mesh, axes: tuple[str, ...]) -> Any:
    """As many pairs in each block, by padding of -1."""
    missing = -len(pairs) % _blocks(mesh, axes).shape[1] if np.ndim(pairs) == 2 else 0
    return np.pad(np.asarray(pairs), ((0, missing), (0, 0)), constant_values=-1) if missing else pairs


def _number(mesh: Mesh, axes: tuple[str, ...]) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)


def _blocks(mesh: Mesh, axes: tuple[str, ...]) -> Int[np.ndarray, "number mine"]:
    """For each block of a batch along the axes, all blocks of the process that gives it, in the order of its part."""
    number = _number(mesh, axes)
    where: dict[Any, Any] = dict(NamedSharding(mesh, PartitionSpec(axes)).devices_indices_map((number,)))
    of_process: dict[int, set[int]] = {}
    for device, (index,) in where.items():
        of_process.setdefault(device.process_index, set()).add(index.start or 0)
    of_block = {block: sorted(mine) for mine in of_process.values() for block in mine}
    return np.array([of_block[block] for block in range(number)], np.int32)


def _axes_of(model: nnx.Module, mesh: Mesh) -> tuple[str, ...]:
    """The axes that examples lie over: those without classes, or else all."""
    of_classes = {place.axis for place in _placements(model)}
    others = tuple(name for name in mesh.axis_names if name not in of_classes)
    return others if any(mesh.shape[name] > 1 for name in others) else tuple(mesh.axis_names)


def _placements(model: nnx.Module) -> list[Any]:
    places = [placement_of(node) for _, node in nnx.iter_graph(model)]
    return [place for place in places if place is not None and place.mesh is not None]
