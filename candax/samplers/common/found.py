"""From classes that were found, with repeats, to a candidate set: distinct ones, thinning, and uniform fill."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import KeyArray
from candax.runs import starts_of_runs
from candax.samplers.common.thresholds import random_below

# A slot that holds no id; it sorts behind all.
EMPTY = 2**31 - 1
_RUN = 128


def running_count(mask: Bool[Array, "rows n"]) -> Int[Array, "rows n"]:
    """How many are True up to each place of a row: sums of short runs by a product, several times quicker than a scan.

    Example:
        >>> import jax.numpy as jnp
        >>> running_count(jnp.array([[True, False, True]])).tolist()
        [[1, 1, 2]]
    """
    rows, n = mask.shape
    runs = jnp.pad(mask, ((0, 0), (0, -n % _RUN))).reshape(rows, -1, _RUN).astype(jnp.float32)
    triangle = jnp.triu(jnp.ones((_RUN, _RUN), jnp.float32))
    inside = jnp.matmul(runs, triangle, precision=jax.lax.Precision.HIGHEST).astype(jnp.int32)
    before = jnp.cumsum(inside[..., -1], axis=1) - inside[..., -1]
    return (inside + before[..., None]).reshape(rows, -1)[:, :n]


def or_empty(ids: Int[Array, "*batch n"]) -> Int[Array, "*batch n"]:
    """Ids, with ``EMPTY`` for padding below 0."""
    return jnp.where(ids < 0, EMPTY, ids)


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
    if not ids.shape[1]:
        return Found(ids, jnp.zeros(ids.shape[0], jnp.int32))
    ids = jnp.sort(ids, axis=1)
    first = starts_of_runs(ids) & (ids != EMPTY)
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
    start, length = i * part + jnp.minimum(i, longer), jnp.where(i < size, part + (i < longer).astype(jnp.int32), 0)
    place = start + random_below(key_place, length.shape, jnp.maximum(length, 1)).astype(jnp.int32)
    turn = random_below(key_turn, bound.shape, jnp.maximum(bound, 1)).astype(jnp.int32)
    # Not (place + turn) % bound, which could leave int32.
    left = bound - turn
    turned = jnp.where(place < left, place + turn, place - left)
    return jnp.where(length > 0, turned, 0), length > 0


def thin(
    key: KeyArray, found: Found, num_slots: int
) -> tuple[Int[Array, "G S"], Bool[Array, "G S"], Float[Array, " G"]]:
    """A random subset of ``num_slots`` found ids, each kept with probability min(1, num_slots / number).

    Returns:
        Slots of a candidate set, their mask, and the log of that probability.
    """
    rank, mask = distinct_below(key, found.number, jnp.full(found.number.shape, num_slots), num_slots)
    ids = jnp.take_along_axis(found.ids, jnp.minimum(rank, found.ids.shape[1] - 1), axis=1)
    log_kept = jnp.log(num_slots / jnp.maximum(found.number, num_slots).astype(jnp.float32))
    return jnp.where(mask, ids, 0), mask, log_kept


def thin_and_fill(
    key: KeyArray, found: Found, num_slots: int, num_fill: int, num_valid: Int[Array, ""]
) -> tuple[Int[Array, "G S"], Bool[Array, "G S"], Float[Array, " G"], Float[Array, " G"]]:
    """``num_slots`` classes: at most ``num_slots - num_fill`` of those found, and in the other slots classes not found.

    The n found classes are kept with probability min(1, (num_slots - num_fill) / n); every class that was not found is
    among the F others with probability min(1, F / (num_valid - n)).

    Returns:
        Slots of a candidate set, their mask, and the logs of both probabilities.
    """
    key_thin, key_fill = jax.random.split(key)
    most = num_slots - num_fill
    kept, _, log_kept = thin(key_thin, found, most)
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
    padded = jnp.pad(kept, ((0, 0), (0, num_fill)))
    ids = jnp.where(front, padded, jnp.take_along_axis(fill, behind, axis=1))
    mask = front | jnp.take_along_axis(some, behind, axis=1)
    log_fill = jnp.log(jnp.minimum(wanted.astype(jnp.float32) / jnp.maximum(others, 1).astype(jnp.float32), 1.0))
    return jnp.where(mask, ids, 0), mask, log_kept, log_fill


def is_found(found: Int[Array, "G W"], ids: Int[Array, "G n"]) -> Bool[Array, "G n"]:
    """Which ids are among those found in their group, which are in rising order."""
    if not found.shape[1]:
        return jnp.zeros(ids.shape, bool)
    place = jax.vmap(jnp.searchsorted)(found, ids)
    return jnp.take_along_axis(found, jnp.minimum(place, found.shape[1] - 1), axis=1) == ids
