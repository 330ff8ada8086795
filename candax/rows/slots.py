"""Putting what an exact optimizer keeps of tables beside them, taking it away, and settling all rows by it."""

from collections.abc import Iterable
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array

from candax.base import State
from candax.checks import checked
from candax.rows.by_rows import Rowwise
from candax.rows.tables import (
    RULE,
    SUFFIX,
    Lagging,
    Slots,
    Table,
    attributes,
    is_spread,
    rule_of,
    tables_and_slots,
)


def attach(model: nnx.Module, table: Table, state: State, rule: Rowwise) -> Slots:
    """Puts slots beside a table, in all modules that have it.

    Raises:
        ValueError: where a table is in a list or a dict, in which nothing has a place beside it.
    """
    slots = Slots(state, **{RULE: rule})
    for _, owner in list(nnx.iter_graph(model)):
        names = [name for name, value in attributes(owner) if value is table]
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
        for name, slots in list(attributes(owner)):
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


def slot_paths(model: nnx.Module) -> list[tuple[Any, ...]]:
    """Where an exact optimizer puts slots, one path for each attribute that is a table."""
    return [
        (*path, f"{name}{SUFFIX}")
        for path, owner in nnx.iter_graph(model)
        for name, value in attributes(owner)
        if isinstance(value, Table)
    ]


def _settle(model: nnx.Module, chosen: set[int] | None, donate: bool) -> set[int]:
    """Settles all tables, or those whose ``id`` is chosen; returns the ``id`` of their slots."""
    done: set[int] = set()
    for table, slots in tables_and_slots(model):
        if id(slots) not in done and (chosen is None or id(table) in chosen):
            done.add(id(slots))
            settled = _settled_in_place if donate else _settled
            slow = Lagging(table, slots.get_value(), rule_of(slots))
            state, rows = settled(slow.rule, is_spread(table), slow.state, table[...])
            slots.set_value(state)
            table.set_value(rows)
    return done


def _settle_table(rule: Rowwise, at_once: bool, state: State, table: Array) -> tuple[State, Array]:
    return rule.settle(state, table, at_once)


_settled = jax.jit(_settle_table, static_argnums=(0, 1))
_settled_in_place = jax.jit(_settle_table, static_argnums=(0, 1), donate_argnums=(2, 3))
