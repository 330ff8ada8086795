"""Edits of buckets: the deletions and insertions of a chunk, applied to small arrays of the buckets concerned."""

from typing import Literal, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from candax.base import KeyArray
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY
from candax.samplers.common.thresholds import random_below

Eviction: TypeAlias = Literal["fifo", "reservoir"]


def _without(held: Int[Array, "n capacity"], dead: Bool[Array, "n capacity"], skip: Int[Array, " n"]) -> Array:
    """Rows without their dead places and without the first ``skip`` of the others, moved to the left."""
    place = jnp.arange(held.shape[1], dtype=jnp.int32)
    number = jnp.sum(dead, axis=1)

    def next_dead(i: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        source, last = carry
        later = dead & (place > last[:, None])
        last = jnp.where(jnp.any(later, axis=1), jnp.argmax(later, axis=1), held.shape[1]).astype(jnp.int32)
        return source + (source >= last[:, None]).astype(source.dtype), last

    # As many rounds as the row with most deletions needs: one or two as a rule.
    start = (place + skip[:, None], jnp.full(held.shape[0], -1, jnp.int32))
    source, _ = jax.lax.fori_loop(0, jnp.max(number), next_dead, start)
    moved = jnp.take_along_axis(held, jnp.minimum(source, held.shape[1] - 1), axis=1)
    return jnp.where(source < held.shape[1], moved, EMPTY)


def edit(
    buckets: Int[Array, "all capacity"],
    loads: Int[Array, "all"],
    evictions: Int[Array, ""],
    key: KeyArray,
    bucket: Int[Array, " edits"],
    ids: Int[Array, " edits"],
    insert: Bool[Array, " edits"],
    *,
    eviction: Eviction,
) -> tuple[Int[Array, "all capacity"], Int[Array, "all"], Int[Array, ""]]:
    """Applies deletions and insertions; those of the same bucket in their order, deletions first."""
    every_bucket, capacity = buckets.shape
    edits = bucket.shape[0]
    bucket, order = jax.lax.sort((bucket, jnp.arange(edits, dtype=jnp.int32)), num_keys=1, is_stable=True)
    ids, insert, real = ids[order], insert[order], bucket < every_bucket
    insert, delete = insert & real, ~insert & real
    first = starts_of_runs(bucket)
    # From here on ``row`` counts the distinct buckets; fillers are distinct, sorted numbers behind the last bucket.
    row = jnp.cumsum(first, dtype=jnp.int32) - 1
    at = (every_bucket + jnp.arange(edits, dtype=jnp.int32)).at[jnp.where(real, row, edits)].set(bucket, mode="drop")
    held = buckets.at[at].get(mode="fill", fill_value=EMPTY, unique_indices=True, indices_are_sorted=True)
    load = loads.at[at].get(mode="fill", fill_value=0, unique_indices=True, indices_are_sorted=True)

    match = held[row] == ids[:, None]
    found = jnp.where(delete & jnp.any(match, axis=1), jnp.argmax(match, axis=1), capacity)
    dead = jnp.zeros(held.shape, bool).at[row, found].set(True, mode="drop")
    kept = jnp.sum((held != EMPTY) & ~dead, axis=1, dtype=jnp.int32)

    def per_row(flag: Bool[Array, "edits"]) -> Int[Array, "edits"]:
        return jnp.zeros(edits, jnp.int32).at[row].add(flag.astype(jnp.int32))

    deleted, inserted = per_row(delete), per_row(insert)
    # Insertions of a bucket stand behind its deletions, in a run of their own.
    rank = jnp.cumsum(insert, dtype=jnp.int32) - 1
    rank = rank - jnp.full(edits, EMPTY, jnp.int32).at[row].min(jnp.where(insert, rank, EMPTY))[row]
    overflow = jnp.maximum(kept + inserted - capacity, 0)
    target = kept[row] + rank
    skip = jnp.minimum(overflow, kept) if eviction == "fifo" else jnp.zeros_like(overflow)
    result = _without(held, dead, skip)
    if eviction == "fifo":
        target = target - overflow[row]
    if eviction == "reservoir":
        belong = (load - deleted)[row] + rank + 1
        drawn = random_below(key, (edits,), jnp.maximum(belong, 1)).astype(jnp.int32)
        target = jnp.where(target < capacity, target, drawn)
    # Of several that take the same place the last one stays.
    taker = jnp.full((edits, capacity), -1, jnp.int32)
    target = jnp.where(insert & (target >= 0) & (target < capacity), target, capacity)
    taker = taker.at[row, target].max(jnp.arange(edits, dtype=jnp.int32), mode="drop")
    result = jnp.where(taker >= 0, ids[jnp.maximum(taker, 0)], result)
    buckets = buckets.at[at].set(result, mode="drop", unique_indices=True, indices_are_sorted=True)
    loads = loads.at[at].set(load + inserted - deleted, mode="drop", unique_indices=True, indices_are_sorted=True)
    return buckets, loads, evictions + jnp.sum(overflow, dtype=jnp.int32)
