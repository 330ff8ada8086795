"""Classes cut into shards, each with a sampler of its own: what is drawn is the same on any number of devices."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int, PyTree

from candax.alike import made_once
from candax.base import Candidates, Classes, KeyArray, Query, Sampler, State, no_update
from candax.checks import check_positive, checked


class _Shard(NamedTuple):
    """One shard as its sampler sees it: row ``first`` of the whole table is its row 0."""

    first: Int[Array, ""]
    num_valid: Int[Array, ""]
    classes: Classes


@checked
@made_once
def sharded(sampler: Sampler, num_shards: int, *, mesh: Mesh | None = None, axis: str = "classes") -> Sampler:
    """A sampler that draws from each of ``num_shards`` equal runs of class ids by itself, as many samples from each.

    Each shard has its own state and its own key, sees the rows and the labels of its own classes, and draws
    ``S / num_shards`` of the S samples. For a class c of shard s the expected count is that of the shard's sampler.
    What is drawn depends on ``num_shards`` and not on ``mesh``, which only says which devices do the work.

    Args:
        sampler: one that can be divided (``sampler.share``), with the number of samples of all shards together.
        num_shards: must divide the rows of the class vectors and the numbers of samples.
        mesh: the shards are spread over one axis of it; each device draws from its own shards without communication.
            None: one shard after the other, on the device where the arrays are; a step then copies what the sampler
            keeps of each class, such as ranks.
        axis: the name of that axis; its size must divide ``num_shards``.

    Returns:
        A ``Sampler`` of all classes; its state is the states of all shards, stacked.

    Raises:
        ValueError: for a sampler that cannot be divided, or numbers that do not fit.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((8, 2)))
        >>> sampler = cx.samplers.sharded(cx.samplers.uniform(6), 2)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((1, 2)), jnp.array([[1]]), classes)
        >>> drawn = sampler.sample(state, jax.random.key(1), query)
        >>> drawn.ids.shape, bool(jnp.all((drawn.ids[0] >= 4) == (jnp.arange(6) >= 3)))
        ((1, 6), True)

    Source: the hybrid parallel framework of Zhao et al., ANN Softmax (PVLDB 2022), section 3.1.
    """
    check_positive("num_shards", num_shards)
    if mesh is not None and axis not in mesh.shape:
        raise ValueError(f"expected a mesh with the axis {axis!r}, got one with {', '.join(map(repr, mesh.shape))}.")
    if mesh is not None and num_shards % mesh.shape[axis]:
        raise ValueError(
            f"expected num_shards to be a multiple of the {mesh.shape[axis]} devices of the axis {axis!r}, got "
            f"{num_shards}."
        )
    if sampler.share is None:
        raise ValueError(
            "expected a sampler that can be divided among shards, got one without share: give your own one "
            "share=lambda number: the sampler of one of that many shards, with its part of the samples."
        )
    part = sampler.share(num_shards)

    def for_each(
        function: Callable[..., PyTree],
        classes: Classes,
        stacked: PyTree,
        shared: PyTree,
        total: Float[Array, ""] | None = None,
    ) -> PyTree:
        """``function(shard, its part of stacked, shared)`` for every shard; the results stacked."""
        rows = classes.num_classes // num_shards
        if rows * num_shards != classes.num_classes:
            raise ValueError(
                f"expected a number of rows that {num_shards} shards divide, got {classes.num_classes}: pad the tables."
            )
        tables = (classes.vectors, classes.biases, classes.counts)
        cut = jax.tree.map(lambda table: table.reshape(num_shards, rows, *table.shape[1:]), tables)

        def one(arguments: Any, of_all: Any, shared: PyTree) -> PyTree:
            num_valid, total = of_all
            number, (vectors, biases, counts), stacked = arguments
            first = number * rows
            valid = jnp.clip(num_valid - first, 0, rows).astype(jnp.int32)
            # No sampler knows what to do without any class: candidates of an empty shard are masked instead.
            of_shard = Classes(vectors, biases, counts, jnp.maximum(valid, 1), classes.normalized, total, num_valid)
            return function(_Shard(first, valid, of_shard), stacked, shared)

        def some(arguments: Any, of_all: Any, shared: PyTree) -> PyTree:
            if jax.tree.leaves(arguments)[0].shape[0] == 1:
                result = one(jax.tree.map(lambda leaf: leaf[0], arguments), of_all, shared)
                return jax.tree.map(lambda leaf: leaf[None], result)
            # One after the other, and not vmapped: a vmapped condition runs both of its branches.
            return jax.lax.map(lambda of_shard: one(of_shard, of_all, shared), arguments)

        arguments = (jnp.arange(num_shards, dtype=jnp.int32), cut, stacked)
        if mesh is None:
            return some(arguments, (classes.num_valid, total), shared)
        over, everywhere = PartitionSpec(axis), PartitionSpec()
        # Samplers are never differentiated, and loops that start from constants would not pass the check (check_vma).
        mapped = jax.shard_map(
            some, mesh=mesh, in_specs=(over, everywhere, everywhere), out_specs=over, check_vma=False
        )
        return mapped(arguments, (classes.num_valid, total), shared)

    def total_of(classes: Classes) -> Float[Array, ""] | None:
        """The sum of all counts: for states alone, as a step must not read them all."""
        if classes.counts is None:
            return None
        return jnp.sum(jnp.where(jnp.arange(classes.num_classes) < classes.num_valid, classes.counts, 0))

    def key_of(key: KeyArray, shard: _Shard) -> KeyArray:
        return jax.random.fold_in(key, shard.first)

    def within(ids: Array, shard: _Shard) -> tuple[Array, Array]:
        """Ids as rows of a shard, and which of them are its own."""
        local = ids - shard.first
        mine = (ids >= 0) & (local >= 0) & (local < shard.classes.num_classes)
        return local, mine

    def query_of(shard: _Shard, embeddings: Array, labels: Array) -> Query:
        local, mine = within(labels, shard)
        return Query(embeddings, jnp.where(mine, local, -1), shard.classes, (labels >= 0) & ~mine)

    def init(key: KeyArray, classes: Classes) -> State:
        def one(shard: _Shard, _: State, key: KeyArray) -> State:
            return part.init(key_of(key, shard), shard.classes)

        return for_each(one, classes, (), key, total_of(classes))

    def refresh(state: State, key: KeyArray, classes: Classes) -> State:
        def one(shard: _Shard, state: State, key: KeyArray) -> State:
            return part.refresh(state, key_of(key, shard), shard.classes)

        return for_each(one, classes, state, key, total_of(classes))

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        def one(shard: _Shard, state: State, shared: Any) -> tuple[Array, Array, Array, Candidates]:
            key, embeddings, labels = shared
            found = part.sample(state, key_of(key, shard), query_of(shard, embeddings, labels))
            # A shard with no class to draw still returns candidates, with counts of 0 or invalid ids: mask these.
            mask = found.mask & (found.ids < shard.num_valid) & (found.log_expected_count > -jnp.inf)
            ids = jnp.where(mask, found.ids, 0) + shard.first
            return ids, jnp.where(mask, found.log_expected_count, 0.0), mask, found

        *stacked, found = for_each(one, query.classes, state, (key, query.embeddings, query.labels))
        # Slots of a shard stand together, so that the second axis can be sharded over the devices.
        ids, counts, mask = (jnp.moveaxis(leaf, 0, 1).reshape(leaf.shape[1], -1) for leaf in stacked)
        return Candidates(ids, counts, mask, draw=found)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        def one(shard: _Shard, stacked: Any, shared: Any) -> tuple[Array, Array]:
            (state, found), (ids, embeddings, labels) = stacked, shared
            local, mine = within(ids, shard)
            mine = mine & (local < shard.num_valid)
            of_shard = query_of(shard, embeddings, labels)
            count = part.log_expected_count(state, found, jnp.where(mine, local, 0), of_shard)
            return jnp.where(mine, count, 0.0), mine

        shared = (ids, query.embeddings, query.labels)
        counts, mine = for_each(one, query.classes, (state, candidates.draw), shared)
        return jnp.where(jnp.any(mine, axis=0), jnp.sum(counts, axis=0), -jnp.inf)

    def update(state: State, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> State:
        def one(shard: _Shard, state: State, shared: Any) -> State:
            key, embeddings, labels, row_ids, rows = shared
            # Row ids are sorted, so those of a shard are one run, which is moved to the front here.
            number, here = row_ids.shape[0], shard.classes.num_classes
            place = jnp.searchsorted(row_ids, shard.first) + jnp.arange(number)
            at = jnp.minimum(place, number - 1)
            local = row_ids[at] - shard.first
            mine = (place < number) & (local < here)
            fillers = here + jnp.arange(number, dtype=row_ids.dtype)
            changed = jnp.where(mine[:, None], rows[at], 0).astype(rows.dtype)
            of_shard = query_of(shard, embeddings, labels)
            return part.update(state, key_of(key, shard), of_shard, jnp.where(mine, local, fillers), changed)

        return for_each(one, query.classes, state, (key, query.embeddings, query.labels, row_ids, rows))

    # Outside a program, loops over shards would be compiled anew at every call.
    return Sampler(
        jax.jit(init),
        jax.jit(sample),
        jax.jit(log_expected_count),
        no_update if part.update is no_update else jax.jit(update),
        jax.jit(refresh),
        part.schedule,
        dataclasses.replace(part.facts, alike=False),
    )
