"""From buckets to a candidate set: reading within a quota, removing repeats, thinning, and uniform fill."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.base import KeyArray
from candax.samplers.common.thresholds import random_below
from candax.samplers.lsh.edits import EMPTY, running_count
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
    share = jnp.sum(jnp.where(visited, share, 0.0), axis=2) / jnp.maximum(number, 1) * chance[:, None]
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


class Found(NamedTuple):
    """Distinct ids of every group in rising order, padded with ``EMPTY``, and how many there are."""

    ids: Int[Array, "G W"]
    number: Int[Array, " G"]


def distinct(ids: Int[Array, "G W"]) -> Found:
    """Removes repeats.

    Example:
        >>> import jax.numpy as jnp
        >>> distinct(jnp.array([[4, 1, 4, EMPTY]])).ids.tolist() == [[1, 4, EMPTY, EMPTY]]
        True
    """
    ids = jnp.sort(ids, axis=1)
    first = jnp.concatenate([jnp.ones_like(ids[:, :1], bool), ids[:, 1:] != ids[:, :-1]], axis=1) & (ids != EMPTY)
    rank = jnp.where(first, running_count(first) - 1, ids.shape[1])
    rows = jnp.broadcast_to(jnp.arange(ids.shape[0])[:, None], ids.shape)
    front = jnp.full(ids.shape, EMPTY, jnp.int32).at[rows, rank].set(ids, mode="drop")
    return Found(front, jnp.sum(first, axis=1, dtype=jnp.int32))


def distinct_below(
    key: KeyArray, bound: Int[Array, " G"], size: Int[Array, " G"], num_slots: int
) -> tuple[Int[Array, "G slots"], Bool[Array, "G slots"]]:
    """Distinct random numbers of [0, bound): each is among them with probability min(1, size / bound).

    The range, rotated by a random number, is cut into ``size`` parts, as equal as integers allow, and one number is
    drawn from each: O(num_slots) whatever the bound.

    Args:
        key: for the draw.
        bound: of each group.
        size: how many numbers each group wants, at most ``num_slots``.
        num_slots: slots of the result.

    Returns:
        The numbers, in front, and a mask: False where no more are wanted or the bound is too small for so many.
    """
    key_turn, key_place = jax.random.split(key)
    bound, size = bound[:, None], jnp.maximum(size, 1)[:, None]
    part, longer = bound // size, bound % size
    i = jnp.arange(num_slots, dtype=jnp.int32)
    start, length = i * part + jnp.minimum(i, longer), jnp.where(i < size, part + (i < longer), 0)
    place = start + random_below(key_place, length.shape, jnp.maximum(length, 1)).astype(jnp.int32)
    turn = random_below(key_turn, bound.shape, jnp.maximum(bound, 1)).astype(jnp.int32)
    # Not (place + turn) % bound, which could leave int32.
    left = bound - turn
    turned = jnp.where(place < left, place + turn, place - left)
    return jnp.where(length > 0, turned, 0), length > 0


class Chosen(NamedTuple):
    """Slots of a candidate set, and the log of the probability with which a found class was kept."""

    ids: Int[Array, "G S"]
    mask: Bool[Array, "G S"]
    log_kept: Float[Array, " G"]


def thin(key: KeyArray, found: Found, num_slots: int) -> Chosen:
    """A random subset of ``num_slots`` found ids, each kept with probability min(1, num_slots / number)."""
    rank, mask = distinct_below(key, found.number, jnp.full(found.number.shape, num_slots), num_slots)
    ids = jnp.take_along_axis(found.ids, jnp.minimum(rank, found.ids.shape[1] - 1), axis=1)
    log_kept = jnp.log(num_slots / jnp.maximum(found.number, num_slots).astype(jnp.float32))
    return Chosen(jnp.where(mask, ids, 0), mask, log_kept)


class Filled(NamedTuple):
    """A candidate set of found and other classes, with the logs of both probabilities."""

    ids: Int[Array, "G S"]
    mask: Bool[Array, "G S"]
    log_kept: Float[Array, " G"]
    log_fill: Float[Array, " G"]


def thin_and_fill(key: KeyArray, found: Found, num_slots: int, num_fill: int, num_valid: Int[Array, ""]) -> Filled:
    """``num_slots`` classes: at most ``num_slots - num_fill`` of those found, and in the other slots classes not found.

    The n found classes are kept with probability min(1, (num_slots - num_fill) / n); every class that was not found is
    among the F others with probability min(1, F / (num_valid - n)).
    """
    key_thin, key_fill = jax.random.split(key)
    most = num_slots - num_fill
    kept = thin(key_thin, found, most)
    number = jnp.minimum(found.number, most)
    others = jnp.maximum(num_valid.astype(jnp.int32) - found.number, 0)
    wanted = num_slots - number  # between num_fill and num_slots
    rank, some = distinct_below(key_fill, others, wanted, num_slots)
    # The r-th class that was not found: r plus the number of found ids up to there.
    gaps = jnp.where(found.ids == EMPTY, EMPTY, found.ids - jnp.arange(found.ids.shape[1], dtype=jnp.int32))
    skipped = jax.vmap(lambda gaps, rank: jnp.searchsorted(gaps, rank, side="right"))(gaps, rank).astype(jnp.int32)
    fill = jnp.where(some, rank + skipped, 0)
    # Kept classes stand in front, in the slots below ``number``; the fill takes the slots behind them.
    slot = jnp.arange(num_slots, dtype=jnp.int32)
    front = slot < number[:, None]
    behind = jnp.maximum(slot - number[:, None], 0)
    padded = jnp.pad(kept.ids, ((0, 0), (0, num_fill)))
    ids = jnp.where(front, padded, jnp.take_along_axis(fill, behind, axis=1))
    mask = front | jnp.take_along_axis(some, behind, axis=1)
    log_fill = jnp.log(jnp.minimum(wanted / jnp.maximum(others, 1).astype(jnp.float32), 1.0))
    return Filled(jnp.where(mask, ids, 0), mask, kept.log_kept, log_fill)


def is_found(found: Found, ids: Int[Array, "G n"]) -> Bool[Array, "G n"]:
    """Which ids are among those found in their group."""
    place = jax.vmap(jnp.searchsorted)(found.ids, ids)
    return jnp.take_along_axis(found.ids, jnp.minimum(place, found.ids.shape[1] - 1), axis=1) == ids
