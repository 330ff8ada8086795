"""Inverted lists in contiguous order: which classes belong to each centre, in blocks of one size.

Every list starts a block of its own, so that a query reads whole blocks: one slice of contiguous memory each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import pytree
from candax.samplers.common.selection import best_first

# Places per block; fewer where lists are so short that much of their last blocks would be empty.
_BLOCK = 128
_BLOCKS_A_LIST = 8


@pytree
class Lists:
    """Which class is where.

    Attributes:
        first_block: of each list; the last entry is how many blocks are in use.
        sizes: classes of each list.
        ids: the class at each place; places without one hold an arbitrary id.
        places: the place of each class, ``block * block_size + place in the block``; beyond all for padding rows.
    """

    first_block: Int[Array, " centers_and_end"]
    sizes: Int[Array, " centers"]
    ids: Int[Array, "blocks block"]
    places: Int[Array, " num_classes"]


class Visit(NamedTuple):
    """The blocks that each query reads, the list of each block, and how many of its first places hold a class."""

    blocks: Int[Array, "B R"]
    lists: Int[Array, "B R"]
    filled: Int[Array, "B R"]


def block_size(num_classes: int, num_centers: int) -> int:
    """Places per block, a power of two: 128, or at most an eighth of the mean length of a list.

    Example:
        >>> block_size(1_000_000, 256), block_size(1000, 10), block_size(20, 10)
        (128, 8, 1)
    """
    eighth = max(1, num_classes // (num_centers * _BLOCKS_A_LIST))
    return min(_BLOCK, 1 << (eighth.bit_length() - 1))


def num_blocks(num_classes: int, num_centers: int, block: int) -> int:
    """As many blocks as any distribution of the classes over the lists can need."""
    return (num_classes + num_centers * (block - 1)) // block


def arrange(assigned: Int[Array, " num_classes"], num_centers: int, block: int) -> Lists:
    """Puts classes in the order of their lists, and of their ids within a list.

    Args:
        assigned: the list of each class; ``num_centers`` for padding rows.
        num_centers: number of lists.
        block: places per block.

    Returns:
        ``Lists``.

    Example:
        >>> import jax.numpy as jnp
        >>> lists = arrange(jnp.array([1, 0, 1, 1]), num_centers=2, block=2)
        >>> lists.first_block.tolist(), lists.sizes.tolist(), lists.places.tolist()
        ([0, 1, 3], [1, 3], [2, 0, 3, 4])
    """
    num_classes = assigned.shape[0]
    blocks = num_blocks(num_classes, num_centers, block)
    rank = jnp.arange(num_classes, dtype=jnp.int32)
    by_list, ids = jax.lax.sort((assigned.astype(jnp.int32), rank), num_keys=1, is_stable=True)
    start = jnp.searchsorted(by_list, jnp.arange(num_centers + 1, dtype=jnp.int32)).astype(jnp.int32)
    sizes = jnp.diff(start)
    first_block = jnp.pad(jnp.cumsum(-(-sizes // block)), (1, 0)).astype(jnp.int32)
    known = jnp.minimum(by_list, num_centers - 1)
    place = first_block[known] * block + rank - start[known]
    # Padding rows go beyond all places, where reads and writes are dropped.
    place = jnp.where(by_list < num_centers, place, blocks * block)
    ids_at = jnp.zeros(blocks * block, jnp.int32).at[place].set(ids, mode="drop").reshape(blocks, block)
    places = jnp.zeros(num_classes, jnp.int32).at[ids].set(place, unique_indices=True)
    return Lists(first_block, sizes, ids_at, places)


def visit(lists: Lists, similar: Float[Array, "B centers"], number: int) -> Visit:
    """The first ``number`` blocks of each query's lists, nearest lists first.

    Args:
        lists: the inverted lists.
        similar: how near each query is to each centre.
        number: R, blocks per query, perhaps only some of the last list's.

    Returns:
        ``Visit``; fewer than R blocks are filled where there are not so many.
    """
    block = lists.ids.shape[1]
    # Lists without classes come last, and every other list has at least one block: R lists are enough.
    similar = jnp.where(lists.sizes > 0, similar, -jnp.inf)
    which = jnp.broadcast_to(jnp.arange(similar.shape[1], dtype=jnp.int32), similar.shape)
    near, order = best_first(similar, which, min(number, similar.shape[1]))
    taken = jnp.where(near > -jnp.inf, jnp.diff(lists.first_block)[order], 0)
    end = jnp.cumsum(taken, axis=1)
    slot = jnp.arange(number, dtype=jnp.int32)
    which = jax.vmap(lambda end: jnp.searchsorted(end, slot, side="right"))(end)
    which = jnp.minimum(which, end.shape[1] - 1)
    of_slot = jnp.take_along_axis(order, which, axis=1).astype(jnp.int32)
    inside = slot - jnp.take_along_axis(end - taken, which, axis=1)
    filled = jnp.clip(lists.sizes[of_slot] - inside * block, 0, block)
    some = slot < end[:, -1:]
    blocks = jnp.where(some, lists.first_block[of_slot] + inside, 0)
    return Visit(blocks.astype(jnp.int32), of_slot, jnp.where(some, filled, 0).astype(jnp.int32))


def list_of(first_block: Int[Array, " centers_and_end"], blocks: Int[Array, " n"]) -> Int[Array, " n"]:
    """The list that each block belongs to."""
    found = jnp.searchsorted(first_block, blocks, side="right").astype(jnp.int32) - 1
    return jnp.minimum(found, first_block.shape[0] - 2)
