"""Hash tables of fixed size: which classes are in which bucket, kept up to date by rows.

A bucket is a row of class ids without gaps, padded with ``EMPTY``. An update gathers the buckets that change, edits
them as small arrays and writes each back once, so that donated tables are changed in place.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, UInt32

from candax.base import KeyArray, pytree
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY, running_count
from candax.samplers.lsh.edits import Eviction, edit

# Changes of buckets are made this many at a time.
_CHUNK = 1024


@pytree
class Tables:
    """L hash tables of M buckets for ``num_classes`` classes.

    4 L (num_classes + M (capacity + 1)) + 4 bytes.

    Attributes:
        codes: the bucket of each class in each table; M where it is in none.
        buckets: class ids, left-packed, oldest first; ``EMPTY`` behind them.
        loads: how many classes belong to each bucket, kept or evicted.
        evictions: how many times a class had no room in its bucket or lost it, since the tables were built.
    """

    codes: UInt32[Array, "num_classes tables"]
    buckets: Int[Array, "tables num_buckets capacity"]
    loads: Int[Array, "tables num_buckets"]
    evictions: Int[Array, ""]


def empty_tables(num_classes: int, num_tables: int, num_buckets: int, capacity: int) -> Tables:
    """Tables without classes.

    Args:
        num_classes: rows of the output layer.
        num_tables: L.
        num_buckets: M, buckets per table, a power of two.
        capacity: the most classes that a bucket keeps.

    Returns:
        ``Tables``.

    Raises:
        ValueError: if the buckets of all tables, or the places of one table, cannot be numbered in 31 bits.
    """
    if num_tables * num_buckets >= EMPTY or num_buckets > 1 << 24:
        raise ValueError(
            f"expected num_tables * num_buckets < 2^31 and num_buckets <= 2^24, got {num_tables} tables of "
            f"{num_buckets} buckets. Use fewer buckets."
        )
    if num_buckets * capacity >= EMPTY:
        raise ValueError(
            f"expected fewer than 2^31 places per table, got {num_buckets} buckets of {capacity} classes. Use fewer "
            "buckets (num_buckets), or a smaller capacity: without one, every bucket has room for all classes."
        )
    return Tables(
        jnp.full((num_classes, num_tables), num_buckets, jnp.uint32),
        jnp.full((num_tables, num_buckets, capacity), EMPTY, jnp.int32),
        jnp.zeros((num_tables, num_buckets), jnp.int32),
        jnp.int32(0),
    )


def _scrambled(p: UInt32[Array, " n"], salt: UInt32[Array, "4"], num_bits: int) -> UInt32[Array, " n"]:
    """A random bijection of the numbers of ``num_bits`` bits."""
    mask, shift = jnp.uint32((1 << num_bits) - 1), max(1, (num_bits + 1) // 2)
    for i in (0, 2):
        p = ((p ^ salt[i]) * (salt[i + 1] | 1)) & mask
        p = p ^ (p >> shift)
    return p


def build(tables: Tables, key: KeyArray, codes: UInt32[Array, "num_classes tables"]) -> Tables:
    """Fills all buckets anew; the classes of a table enter in a random order, and a full bucket takes no more.

    So where more than ``capacity`` classes belong to a bucket it keeps a random subset, another one in every table.
    O(L num_classes log num_classes), one table at a time: scratch of a few numbers per class and of one table. Written
    into the buckets of ``tables``, in place if those are donated.

    Args:
        tables: gives the sizes and the memory; what it holds is forgotten.
        key: for the random order.
        codes: the bucket of each class in each table; M for classes that belong to none.

    Returns:
        ``Tables`` with these codes.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> tables = build(empty_tables(3, 1, 2, 2), jax.random.key(0), jnp.array([[1], [0], [0]], jnp.uint32))
        >>> sorted(tables.buckets[0, 0].tolist()), int(tables.buckets[0, 1, 0])
        ([1, 2], 0)

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), algorithm
        2.
    """
    num_classes, num_tables = tables.codes.shape
    _, num_buckets, capacity = tables.buckets.shape
    id_bits = max(1, (num_classes - 1).bit_length())
    # A bucket (M included) and a place among those sorted together fit into 32 bits: sorting single numbers is several
    # times faster than sorting pairs.
    place_bits = min(id_bits, 32 - num_buckets.bit_length())
    places = jnp.arange(1 << place_bits, dtype=jnp.uint32)
    salts = jax.random.bits(key, (num_tables, 4), jnp.uint32)

    def enter(i: Array, table: Array, rows: Array, loads: Array) -> tuple[Array, Array]:
        start = i.astype(jnp.uint32) << place_bits
        ids = _scrambled(start | places, salts[table], id_bits).astype(jnp.int32)
        bucket = jnp.where(ids < num_classes, codes[jnp.minimum(ids, num_classes - 1), table], num_buckets)
        entries = jnp.sort((bucket << place_bits) | places)
        bucket = (entries >> place_bits).astype(jnp.int32)
        ids = _scrambled(start | (entries & places[-1]), salts[table], id_bits).astype(jnp.int32)
        order = jnp.arange(entries.shape[0], dtype=jnp.int32)
        first = starts_of_runs(bucket)
        last = jnp.concatenate([first[1:], jnp.ones(1, bool)])
        begin = jax.lax.cummax(jnp.where(first, order, 0))
        slot = loads[jnp.minimum(bucket, num_buckets - 1)] + order - begin
        real = bucket < num_buckets
        target = jnp.where(real & (slot < capacity), bucket * capacity + slot, rows.shape[0])
        rows = rows.at[target].set(ids, mode="drop", unique_indices=False)
        return rows, loads.at[jnp.where(real & last, bucket, num_buckets)].set(slot + 1, mode="drop")

    def of_table(table: Array, filled: tuple[Array, Array]) -> tuple[Array, Array]:
        rows, loads = jnp.full(num_buckets * capacity, EMPTY, jnp.int32), jnp.zeros(num_buckets, jnp.int32)
        rows, loads = jax.lax.fori_loop(
            0, 1 << (id_bits - place_bits), lambda i, made: enter(i, table, *made), (rows, loads)
        )
        return (
            jax.lax.dynamic_update_index_in_dim(filled[0], rows.reshape(num_buckets, capacity), table, 0),
            jax.lax.dynamic_update_index_in_dim(filled[1], loads, table, 0),
        )

    buckets, loads = jax.lax.fori_loop(0, num_tables, of_table, (tables.buckets, tables.loads))
    evictions = jnp.sum(jnp.maximum(loads - capacity, 0), dtype=jnp.int32)
    return Tables(codes, buckets, loads, evictions)


def update(
    tables: Tables,
    key: KeyArray,
    row_ids: Int[Array, " U"],
    codes: UInt32[Array, "U tables"],
    *,
    eviction: Eviction = "fifo",
) -> Tables:
    """Moves classes to other buckets: where a class's code changes, it is deleted from the old bucket and inserted.

    All deletions come first, then the insertions by rising id. While no bucket overflows, the buckets then hold the
    same sets as tables built anew. A full bucket evicts: "fifo" the class that entered first; "reservoir" keeps each of
    the n classes that belong to the bucket with probability capacity / n: the newcomer takes a random place, or none.
    (After deletions from an overfull bucket its free slots go to the next classes that enter; evicted classes do not
    return until the tables are built anew or their code changes.)

    O(U L) codes and, for each code that changed, two buckets. In place on donated tables.

    Args:
        tables: as built.
        key: for "reservoir".
        row_ids: sorted, unique; ids >= num_classes are fillers to be ignored.
        codes: the new bucket of each class in each table; M stands for none. To insert a class is to update one that is
            in no bucket; to delete it is to update it to M.
        eviction: what a full bucket does.

    Returns:
        ``Tables``.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> codes = jnp.array([[1], [0], [0]], jnp.uint32)
        >>> tables = build(empty_tables(3, 1, 2, 2), jax.random.key(0), codes)
        >>> tables = update(tables, jax.random.key(1), jnp.array([1, 3]), jnp.array([[1], [0]], jnp.uint32))
        >>> tables.buckets[0, 1].tolist(), int(tables.buckets[0, 0, 0])
        ([0, 1], 2)

    Source: Daghaghi et al. (2021), algorithm 5; reservoir: Vitter, Random Sampling with a Reservoir (1985).
    """
    num_classes, num_tables = tables.codes.shape
    _, num_buckets, capacity = tables.buckets.shape
    every_bucket = num_tables * num_buckets
    old = tables.codes.at[row_ids].get(
        mode="fill", fill_value=num_buckets, unique_indices=True, indices_are_sorted=True
    )
    new = jnp.where(row_ids[:, None] < num_classes, codes, jnp.uint32(num_buckets))
    changed = old != new
    # Rows whose codes stay the same are written with what was read from them. So the write has to wait for the read,
    # and XLA need not copy the table.
    all_codes = tables.codes.at[row_ids].set(
        jnp.where(changed, new, old), mode="drop", unique_indices=True, indices_are_sorted=True
    )

    def flat(code: Array) -> Array:
        bucket = jnp.arange(num_tables, dtype=jnp.int32) * num_buckets + code.astype(jnp.int32)
        return jnp.where(changed & (code < num_buckets), bucket, every_bucket).reshape(-1)

    bucket = jnp.concatenate([flat(old), flat(new)])
    number, order = _to_front(bucket < every_bucket)
    size = order.shape[0]

    def chunk(i: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        places = jax.lax.dynamic_slice_in_dim(order, i * _CHUNK, _CHUNK)
        real = places < bucket.shape[0]
        place = jnp.where(real, places, 0)
        ids = jnp.repeat(row_ids, num_tables)[place % (bucket.shape[0] // 2)]
        return edit(
            *carry,
            jax.random.fold_in(key, i),
            jnp.where(real, bucket[place], every_bucket),
            ids,
            place >= bucket.shape[0] // 2,
            eviction=eviction,
        )

    carry = (
        tables.buckets.reshape(every_bucket, capacity),
        tables.loads.reshape(every_bucket),
        tables.evictions,
    )
    assert size % _CHUNK == 0
    buckets, loads, evictions = jax.lax.fori_loop(0, (number + _CHUNK - 1) // _CHUNK, chunk, carry)
    return Tables(all_codes, buckets.reshape(tables.buckets.shape), loads.reshape(tables.loads.shape), evictions)


def _to_front(mask: Bool[Array, " n"]) -> tuple[Int[Array, ""], Int[Array, " padded"]]:
    """How many are True, and their places in order; behind them n, up to whole chunks."""
    n = mask.shape[0]
    rank = running_count(mask[None])[0]
    places = jnp.full(n + -n % _CHUNK, n, jnp.int32)
    places = places.at[jnp.where(mask, rank - 1, places.shape[0])].set(jnp.arange(n, dtype=jnp.int32), mode="drop")
    return rank[-1], places
