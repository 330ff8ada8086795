"""Slots: what an exact optimizer keeps of a table, beside the table, so that whoever reads rows can settle them."""

from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Int

from candax.base import State
from candax.checks import checked
from candax.rows.by_rows import Rowwise
from candax.rows.tables import Table, placement_of

# A table's attribute and this make the name of the attribute that holds the table's slots.
SUFFIX = "_slots"
_RULE = "rule"


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
        return self.rule.settle(self.state, jnp.asarray(self.table[...]), _is_spread(self.table))[1]


def lagging(owner: Any, name: str) -> Lagging | None:
    """The table that is an attribute of a module, where an exact optimizer trains it."""
    slots = getattr(owner, name + SUFFIX, None)
    return Lagging(getattr(owner, name), slots.get_value(), rule_of(slots)) if isinstance(slots, Slots) else None


def rule_of(slots: Slots) -> Rowwise:
    """The optimizer whose state it is."""
    return slots.get_metadata(_RULE)


def attach(model: nnx.Module, table: Table, state: State, rule: Rowwise) -> Slots:
    """Puts slots beside a table, in all modules that have it.

    Raises:
        ValueError: where a table is in a list or a dict, in which nothing has a place beside it.
    """
    slots = Slots(state, **{_RULE: rule})
    for _, owner in list(nnx.iter_graph(model)):
        names = [name for name, value in _attributes(owner) if value is table]
        if names and not all(isinstance(name, str) and isinstance(owner, nnx.Module) for name in names):
            raise ValueError(
                f"expected a table for an exact optimizer to be an attribute of a module, got one in a "
                f"{type(owner).__name__}: make it an attribute, or take a lazy optimizer such as optax.adam."
            )
        for name in names:
            setattr(owner, name + SUFFIX, slots)
    return slots


def detach(model: nnx.Module, tables: Iterable[Table]) -> None:
    """Settles tables that had an exact optimizer until now, and takes away what it kept of them."""
    chosen = {id(table) for table in tables}
    done = _settle(model, chosen, donate=False)
    for _, owner in list(nnx.iter_graph(model)):
        for name, slots in list(_attributes(owner)):
            if isinstance(slots, Slots) and id(slots) in done:
                delattr(owner, name)


@checked
def settle(model: nnx.Module, *, donate: bool = False) -> None:
    """Brings all rows of tables with an exact optimizer (``cx.rows.exact_adamw``) up to date, in place.

    ``cx.Embed``, ``cx.Head`` and what stands in ``cx.value_and_grad`` settle the rows that they read, and
    ``cx.training.fit`` calls this before it validates and saves. Call it before other readers, such as ``table[...]``
    or an export of your own. Without such tables nothing happens.

    Args:
        model: with tables anywhere in it.
        donate: reuse the memory of tables and slots. Not where others hold them too, as clones of the model do.

    Example:
        >>> import jax.numpy as jnp, optax, candax as cx
        >>> head = cx.Head(9, 2, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
        >>> optimizer = cx.Optimizer(head, optax.adam(0.1), tables=cx.rows.exact_adam(0.1))
        >>> _, grads = cx.value_and_grad(lambda head: head.loss(jnp.ones((1, 2)), jnp.array([1])))(head)
        >>> optimizer.update(head, grads)
        >>> cx.rows.settle(head)
        >>> head.vectors_slots.get_value().last.tolist()
        [1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    _settle(model, None, donate)


def slots_of_tables(node: Any) -> dict[int, Slots]:
    """All slots within a node, by the ``id`` of their table.

    Not by paths: of a table and of its slots that modules share, the first paths may be in different modules.
    """
    return {id(table): slots for table, slots in _tables_and_slots(node)}


def slot_paths(model: nnx.Module) -> list[tuple[Any, ...]]:
    """Where an exact optimizer puts slots, one path for each attribute that is a table."""
    return [
        (*path, f"{name}{SUFFIX}")
        for path, owner in nnx.iter_graph(model)
        for name, value in _attributes(owner)
        if isinstance(value, Table)
    ]


def _tables_and_slots(node: Any) -> Iterator[tuple[Table, Slots]]:
    for _, owner in nnx.iter_graph(node):
        for name, slots in list(_attributes(owner)) if isinstance(owner, nnx.Module) else ():
            if isinstance(slots, Slots):
                yield getattr(owner, name.removesuffix(SUFFIX)), slots


def _settle(model: nnx.Module, chosen: set[int] | None, donate: bool) -> set[int]:
    """Settles all tables, or those whose ``id`` is chosen; returns the ``id`` of their slots."""
    done: set[int] = set()
    for table, slots in _tables_and_slots(model):
        if id(slots) not in done and (chosen is None or id(table) in chosen):
            done.add(id(slots))
            settled = _settled_in_place if donate else _settled
            slow = Lagging(table, slots.get_value(), rule_of(slots))
            state, rows = settled(slow.rule, _is_spread(table), slow.state, table[...])
            slots.set_value(state)
            table.set_value(rows)
    return done


def _settle_table(rule: Rowwise, at_once: bool, state: State, table: Array) -> tuple[State, Array]:
    return rule.settle(state, table, at_once)


_settled = jax.jit(_settle_table, static_argnums=(0, 1))
_settled_in_place = jax.jit(_settle_table, static_argnums=(0, 1), donate_argnums=(2, 3))


def _is_spread(table: Any) -> bool:
    """Whether rows lie over several devices: a block of them would be fetched from one device."""
    place = placement_of(table)
    return place is not None and place.mesh is not None


def _attributes(owner: Any) -> Any:
    if isinstance(owner, list | tuple | nnx.List):
        return list(enumerate(owner))
    if isinstance(owner, dict):
        return list(owner.items())
    return [(name, value) for name, value in getattr(owner, "__dict__", {}).items() if isinstance(name, str)]
