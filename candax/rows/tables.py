"""Tables, parameters that are read and trained by rows; where their rows lie; and what lies beside them.

Over a mesh they lie in shards of consecutive ids, dealt to the devices of one of its axes. Beside a table lie the slots
of an exact optimizer, so that whoever reads rows can settle them.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from candax.base import KeyArray, State
from candax.checks import checked
from candax.rows.by_rows import Rowwise

# Up to this many initial values are drawn at once, more of them in about this many parts.
_AT_ONCE, _PARTS = 1 << 24, 128
# A table's attribute and this make the name of the attribute that holds the table's slots.
SUFFIX = "_slots"
RULE = "rule"


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


@partial(jax.jit, static_argnums=(1, 2, 3))
def normal_table(
    key: KeyArray, shape: tuple[int, int], deviation: float, dtype: np.dtype
) -> Float[Array, "num_rows dim"]:
    """Normal numbers. Random bits and their transforms take several times the memory of what is made of them.

    So a large table is drawn in parts: some columns at a time, as its rows may be sharded over devices.
    """
    num_rows, dim = shape

    def draw(key: KeyArray, columns: int) -> Array:
        return jax.random.normal(key, (num_rows, columns), dtype) * jnp.asarray(deviation, dtype)

    if num_rows * dim <= _AT_ONCE:
        return draw(key, dim)
    width = next(width for width in range(max(1, dim // _PARTS), 0, -1) if dim % width == 0)

    def body(part: Array, table: Array) -> Array:
        return lax.dynamic_update_slice(table, draw(jax.random.fold_in(key, part), width), (0, part * width))

    return lax.fori_loop(0, dim // width, body, jnp.zeros(shape, dtype))


class Placement(NamedTuple):
    """How the rows of a table are divided.

    Attributes:
        num_shards: runs of equally many rows; the table is padded to a multiple of it.
        mesh: of automatic axes; None: all rows are on one device.
        axis: of the mesh, over which rows lie; arrays of predictions may lie over its other axes.
    """

    num_shards: int
    mesh: Mesh | None
    axis: str

    def over(self, dimension: int = 0) -> NamedSharding:
        """The sharding of an array that has one dimension over the devices of the axis."""
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(*[None] * dimension, self.axis))

    def place(self, array: Array) -> Array:
        """Pads the rows of an array, and deals them to the devices."""
        padding = -array.shape[0] % self.num_shards
        if padding:
            array = jnp.pad(array, ((0, padding), *[(0, 0)] * (array.ndim - 1)))
        if isinstance(array, jax.core.Tracer):
            return self.spread(array, 0)
        if self.mesh is None:
            return array
        return jax.device_put(array, self.over())

    def spread(self, array: Array, dimension: int) -> Array:
        """Inside ``jit``: lets each device compute its part along a dimension."""
        return array if self.mesh is None else jax.lax.with_sharding_constraint(array, self.over(dimension))


def placement(mesh: Mesh | None, axis: str, num_shards: int | None, num_classes: int) -> Placement | None:
    """From the arguments of a head or an embedding; None where all is on one device and in one shard.

    Raises:
        ValueError: for arguments that do not fit each other.
    """
    if mesh is None and num_shards is None:
        return None
    if mesh is not None and axis not in mesh.axis_names:
        raise ValueError(
            f"expected a mesh with an axis {axis!r}, over which class rows lie, got the axes {mesh.axis_names}: name "
            "it with axis=."
        )
    if mesh is not None and any(kind != AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            f"expected a mesh whose axes are of the type Auto, got {mesh.axis_types}: make it by jax.make_mesh(shape, "
            "names, axis_types=(jax.sharding.AxisType.Auto,) * len(names))."
        )
    devices = 1 if mesh is None else mesh.shape[axis]
    number = devices if num_shards is None else num_shards
    if number < 1 or number % devices:
        raise ValueError(
            f"expected num_shards to be a multiple of the {devices} devices of the axis {axis!r}, got {number}."
        )
    if number > num_classes:
        raise ValueError(
            f"expected at least one class per shard, got {num_classes} classes for {number} shards: use fewer shards, "
            "or fewer devices on that axis."
        )
    return Placement(number, mesh, axis)


def table_of(values: Array | np.ndarray, where: Placement | None) -> Table:
    """A table of these rows, placed where ``where`` says."""
    values = jnp.asarray(values)
    return Table(values) if where is None else Table(where.place(values), placement=where, num_rows=values.shape[0])


def num_rows(table: Any) -> int:
    """Rows of a table or an array, without the padding behind them."""
    padded = table.shape[0]
    return table.get_metadata("num_rows", padded) if isinstance(table, Table) else padded


@checked
def shard(node: nnx.Module, mesh: Mesh | None = None, *, axis: str = "classes", num_shards: int | None = None) -> None:
    """Deals the rows of all tables of a module to the devices of a mesh, in place; those that are placed stay.

    For encoders that take no ``mesh=`` themselves. Call it before the optimizer is made.

    Args:
        node: a module with tables anywhere in it.
        mesh: devices.
        axis: of the mesh, over which rows lie.
        num_shards: see ``cx.Head``.

    Example:
        >>> import jax, candax as cx
        >>> from flax import nnx
        >>> encoder = cx.models.SparseMLP(500, 16, rngs=nnx.Rngs(0))
        >>> mesh = jax.make_mesh((1,), ("classes",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> cx.rows.shard(encoder, mesh)
    """
    for _, table in nnx.iter_graph(node):
        if isinstance(table, Table) and placement_of(table) is None:
            where = placement(mesh, axis, num_shards, table.shape[0])
            if where is not None:
                table.set_metadata("placement", where)
                table.set_metadata("num_rows", table.shape[0])
                table.set_value(where.place(table[...]))


def placement_of(table: Any) -> Placement | None:
    """Where the rows of a table lie; None where they are not placed, and for anything but a table."""
    return table.get_metadata("placement", None) if isinstance(table, Table) else None


@checked
def replicate(mesh: Mesh, *nodes: nnx.Pytree) -> None:
    """Copies every variable that is on one device to all devices of a mesh, in place; those that are placed stay.

    Call it once with model and optimizer, before the first step: without it the first two steps are compiled anew, as
    their arrays come from other places.

    Args:
        mesh: that of the tables.
        nodes: modules and optimizers.

    Example:
        >>> import jax, optax, candax as cx
        >>> from flax import nnx
        >>> auto = jax.sharding.AxisType.Auto
        >>> mesh = jax.make_mesh((1, 1), ("data", "classes"), axis_types=(auto, auto))
        >>> head = cx.Head(100, 8, sampler=cx.samplers.uniform(16), mesh=mesh, rngs=nnx.Rngs(0))
        >>> optimizer = cx.Optimizer(head, optax.adam(1e-3))
        >>> cx.rows.replicate(mesh, head, optimizer)
    """
    everywhere = NamedSharding(mesh, PartitionSpec())

    def put(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or isinstance(leaf.sharding, NamedSharding):
            return leaf
        return jax.device_put(leaf, everywhere)

    for node in nodes:
        nnx.update(node, jax.tree.map(put, nnx.state(node)))


class Slots(nnx.Variable):
    """The state of an exact optimizer for one table. Model and optimizer both use it."""


class Lagging:
    """A table of whose rows an exact optimizer has left some behind: they are brought up to date when they are read.

    Attributes:
        table: an array or a ``Table``.
        state: of the optimizer.
        rule: the optimizer, by rows.
    """

    def __init__(self, table: Any, state: State, rule: Rowwise) -> None:
        rows = table.shape[0]
        # The optimizer may not know yet of rows that a head has added.
        self.table, self.rule = table, rule
        self.state = state if len(state.last) == rows else state.grown(rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table.shape

    def read(self, rows: Array, ids: Int[Array, "..."]) -> Array:
        """Brings rows that were read from the table up to date."""
        return self.rule.read(self.state, rows, ids)

    def whole(self) -> Array:
        """All rows, up to date."""
        return self.rule.settle(self.state, jnp.asarray(self.table[...]), is_spread(self.table))[1]


def lagging(owner: Any, name: str) -> Lagging | None:
    """The table that is an attribute of a module, where an exact optimizer trains it."""
    slots = getattr(owner, name + SUFFIX, None)
    return Lagging(getattr(owner, name), slots.get_value(), rule_of(slots)) if isinstance(slots, Slots) else None


def rule_of(slots: Slots) -> Rowwise:
    """The optimizer whose state it is."""
    return slots.get_metadata(RULE)


def slots_of_tables(node: Any) -> dict[int, Slots]:
    """All slots within a node, by the ``id`` of their table.

    Not by paths: of a table and of its slots that modules share, the first paths may be in different modules.

    Raises:
        ValueError: where two exact optimizers were made for one table, neither of which knows what the other does.
    """
    found: dict[int, Slots] = {}
    for table, slots in tables_and_slots(node):
        if found.setdefault(id(table), slots) is not slots:
            raise ValueError(
                f"expected one exact optimizer for a table that modules share, got two for the one of shape "
                f"{table.shape}: make one cx.Optimizer of a module that holds all that share it."
            )
    return found


def tables_and_slots(node: Any) -> Iterator[tuple[Table, Slots]]:
    for _, owner in nnx.iter_graph(node):
        for name, slots in list(attributes(owner)) if isinstance(owner, nnx.Module) else ():
            if isinstance(slots, Slots):
                yield getattr(owner, name.removesuffix(SUFFIX)), slots


def is_spread(table: Any) -> bool:
    """Whether rows lie over several devices: a block of them would be fetched from one device."""
    place = placement_of(table)
    return place is not None and place.mesh is not None


def attributes(owner: Any) -> Any:
    if isinstance(owner, list | tuple | nnx.List):
        return list(enumerate(owner))
    if isinstance(owner, dict):
        return list(owner.items())
    return [(name, value) for name, value in getattr(owner, "__dict__", {}).items() if isinstance(name, str)]
