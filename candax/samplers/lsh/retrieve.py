"""From queries to what their buckets hold, within a quota."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.base import KeyArray
from candax.samplers.common.found import EMPTY
from candax.samplers.common.thresholds import random_below
from candax.samplers.lsh.tables import Tables


class Entries(NamedTuple):
    """What the queries of each group read: ids with repeats, and ``EMPTY`` in slots without one.

    ``num_tables`` is how many tables each query visited. ``share`` is the share of the classes in their buckets that it
    read, on average: 1 unless a bucket evicted classes or the last bucket was read only in part; times the chance that
    the query reads at all, where there are fewer entries than queries.
    """

    ids: Int[Array, "G W"]
    num_tables: Int[Array, "G Q"]
    share: Float[Array, "G Q"]


def read(
    tables: Tables,
    key: KeyArray,
    codes: UInt32[Array, "G Q tables"],
    valid: Bool[Array, "G Q"],
    num_reads: int | None,
) -> Entries:
    """Reads buckets table by table, from a random table on, until the group's quota is used.

    A group of Q valid queries shares ``num_reads`` entries evenly; where there are fewer entries than queries, a random
    run of the queries gets one each. A query takes whole buckets; the bucket that exceeds its quota is cut to a run
    that starts at a random place. How much is read depends on how many classes the buckets
    hold, repeats included, never on which class was read last.

    Args:
        tables: the index.
        key: for the first table and the place of the cut.
        codes: the bucket of every query in every table.
        valid: False for queries that are padding: they read nothing.
        num_reads: W, entries per group; None: all buckets of all queries.

    Returns:
        ``Entries``.

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), algorithm
        3; the random first table is taken from their published code.
    """
    groups, queries, num_tables = codes.shape
    _, num_buckets, capacity = tables.buckets.shape
    rows = tables.buckets.reshape(num_tables * num_buckets, capacity)
    key_table, key_place = jax.random.split(key)
    first = random_below(key_table, (groups, queries, 1), jnp.uint32(num_tables)).astype(jnp.int32)
    table = (first + jnp.arange(num_tables, dtype=jnp.int32)) % num_tables
    bucket = table * num_buckets + jnp.take_along_axis(codes, table, axis=2).astype(jnp.int32)
    load = tables.loads.reshape(-1)[bucket]
    size = jnp.where(valid[..., None], jnp.minimum(load, capacity), 0)
    everything = queries * num_tables * capacity
    if num_reads is None or num_reads >= everything:
        num_reads, quota = everything, jnp.full(groups, num_tables * capacity, jnp.int32)
        reading, chance = valid, jnp.ones(groups)
    else:
        number = jnp.maximum(jnp.sum(valid, axis=1, dtype=jnp.int32), 1)
        quota = jnp.maximum(num_reads // number, 1)
        start = random_below(jax.random.fold_in(key_table, 1), (groups,), number).astype(jnp.int32)
        place = (jnp.cumsum(valid, axis=1, dtype=jnp.int32) - 1 + start[:, None]) % number[:, None]
        reading = valid & (place < num_reads)
        chance = jnp.minimum(num_reads / number, 1.0)
    before = jnp.cumsum(size, axis=2, dtype=jnp.int32) - size
    taken = jnp.clip(quota[:, None, None] - before, 0, size)
    visited = valid[..., None] & (before < quota[:, None, None])
    number = jnp.sum(visited, axis=2, dtype=jnp.int32)
    share = jnp.where(load > 0, taken / jnp.maximum(load, 1), 1.0)
    total = jnp.sum(jnp.where(visited, share, 0.0), axis=2)
    share = total / jnp.maximum(number, 1).astype(total.dtype) * chance[:, None]
    taken = jnp.where(reading[..., None], taken, 0)

    # Entry i of the group is in the bucket whose running total exceeds i first.
    taken, size = taken.reshape(groups, -1), size.reshape(groups, -1)
    end = jnp.cumsum(taken, axis=1, dtype=jnp.int32)
    entry = jnp.arange(num_reads, dtype=jnp.int32)
    which = jax.vmap(lambda end: jnp.searchsorted(end, entry, side="right"))(end)
    which = jnp.minimum(which, end.shape[1] - 1).astype(jnp.int32)
    place = random_below(key_place, size.shape, jnp.maximum(size, 1)).astype(jnp.int32)
    place = jnp.where(taken < size, place, 0) - (end - taken)
    of_bucket = [jnp.take_along_axis(part, which, axis=1) for part in (place, size, bucket.reshape(groups, -1))]
    slot = (of_bucket[0] + entry) % jnp.maximum(of_bucket[1], 1)
    ids = jnp.where(entry < end[:, -1:], rows[of_bucket[2], slot], EMPTY)
    return Entries(ids, number, share)
