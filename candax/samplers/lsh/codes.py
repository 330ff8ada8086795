"""What a hash family is, and how the K hash values of a table become the number of a bucket."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from candax.base import KeyArray

# Hash values of a block of rows are computed together, with at most this many numbers of scratch.
_SCRATCH = 1 << 22


class HashFamily(NamedTuple):
    """A family of locality sensitive hash functions, as pure functions over their random parameters.

    Attributes:
        init: ``(key, dim, num_functions) -> parameters`` of that many functions.
        values: ``(parameters, vectors[n, dim]) -> uint32[n, num_functions]``, values below ``2**num_bits``.
        log_collision: ``(x[..., Q, dim], y[..., n, dim]) -> float32[..., Q, n]``: log of the probability, over the
            parameters, that one function gives two vectors the same value; for all pairs.
        num_bits: bits of one value.
        scratch: ``(dim, num_functions) -> int``: numbers of scratch per row.
        exact: different functions are independent, and ``log_collision`` holds for every pair of vectors.
        always_collides: no two vectors (but opposite ones) have collision probability 0.
        made_by: its factory's name and named arguments, which files of an index hold; None: it cannot be saved.
    """

    init: Callable[[KeyArray, int, int], Any]
    values: Callable[[Any, Float[Array, "n dim"]], UInt32[Array, "n functions"]]
    log_collision: Callable[[Float[Array, "*g Q dim"], Float[Array, "*g n dim"]], Float[Array, "*g Q n"]]
    num_bits: int
    scratch: Callable[[int, int], int]
    exact: bool
    always_collides: bool
    made_by: tuple[Any, ...] | None = None


def mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit numbers whose every output bit depends on every input bit.

    Source: the finaliser of MurmurHash3 (Appleby, public domain).
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def pack(values: UInt32[Array, "*shape hashes"], num_bits: int) -> UInt32[Array, "*shape"]:
    """The K values of a table side by side in one number: sum_k values_k 2^(k num_bits), without overlap.

    Args:
        values: each below ``2**num_bits``; K * num_bits is at most 32.
        num_bits: bits of one value.

    Returns:
        The packed codes, below ``2**(K * num_bits)``.

    Raises:
        ValueError: if K values do not fit into 32 bits.

    Example:
        >>> import jax.numpy as jnp
        >>> pack(jnp.array([[1, 2, 3]], jnp.uint32), num_bits=2).tolist()
        [57]
    """
    num_hashes = values.shape[-1]
    check_bits(num_hashes, num_bits)
    shifts = num_bits * jnp.arange(num_hashes, dtype=jnp.uint32)
    return jnp.sum(values << shifts, axis=-1, dtype=jnp.uint32)


def check_bits(num_hashes: int, num_bits: int) -> None:
    """Raises where K values of ``num_bits`` do not fit into 32 bits."""
    if num_hashes * num_bits > 32:
        raise ValueError(
            f"expected the hash values of a table to fit into 32 bits, got num_hashes={num_hashes} values of "
            f"{num_bits} bits. Use fewer hashes per table or smaller bins."
        )


def fold(
    codes: UInt32[Array, "*n tables"], salts: UInt32[Array, " tables"], num_bits: int, num_buckets: int
) -> UInt32[Array, "*n tables"]:
    """Bucket numbers: the codes themselves if there is a bucket for each, else the low bits of a mixed code.

    Two different codes then share a bucket with probability 1 / num_buckets over the salts.

    Args:
        codes: packed codes below ``2**num_bits``.
        salts: one random number per table.
        num_bits: bits of a packed code.
        num_buckets: a power of two.

    Returns:
        Numbers below ``num_buckets``.

    Example:
        >>> import jax.numpy as jnp
        >>> fold(jnp.array([[5], [9]], jnp.uint32), jnp.array([1], jnp.uint32), num_bits=4, num_buckets=16).tolist()
        [[5], [9]]
    """
    if num_buckets >= 1 << num_bits:
        return codes
    return mix(codes ^ salts) & jnp.uint32(num_buckets - 1)


class BucketHash(NamedTuple):
    """Random parameters of K x L functions and the salts of L tables."""

    functions: Any
    salts: UInt32[Array, " tables"]


class Hasher(NamedTuple):
    """A hash family with its static numbers: K functions per table, L tables, M buckets."""

    family: HashFamily
    num_hashes: int
    num_tables: int
    num_buckets: int

    @property
    def num_bits(self) -> int:
        """Bits of a packed code."""
        return self.num_hashes * self.family.num_bits

    def init(self, key: KeyArray, dim: int) -> BucketHash:
        """Draws all random parameters."""
        key_functions, key_salts = jax.random.split(key)
        functions = self.family.init(key_functions, dim, self.num_hashes * self.num_tables)
        return BucketHash(functions, jax.random.bits(key_salts, (self.num_tables,), jnp.uint32))

    def buckets(self, parameters: BucketHash, vectors: Float[Array, "n dim"]) -> UInt32[Array, "n tables"]:
        """The bucket of each vector in each table."""
        into = jnp.zeros((vectors.shape[0], self.num_tables), jnp.uint32)
        return self.buckets_into(parameters, vectors, into, vectors.shape[0])

    def buckets_into(
        self,
        parameters: BucketHash,
        vectors: Float[Array, "n dim"],
        into: UInt32[Array, "n tables"],
        num_valid: Int[Array, ""] | int,
        prepare: Callable[[Float[Array, "n dim"], Int[Array, ""]], Float[Array, "n wider"]] | None = None,
    ) -> UInt32[Array, "n tables"]:
        """The same, written into an array; rows from ``num_valid`` on get ``num_buckets``, which means no bucket.

        ``prepare(rows, id of the first)`` returns the vectors to be hashed for a block of rows.
        """
        rows, dim = vectors.shape
        scratch = self.family.scratch(dim, self.num_hashes * self.num_tables)
        block = min(max(1, _SCRATCH // max(scratch, 1)), rows)

        def of_block(i: Array, into: UInt32[Array, "n tables"]) -> UInt32[Array, "n tables"]:
            # The last block moves back instead of running over the end.
            start = jnp.minimum(i * block, rows - block).astype(jnp.int32)
            some = jax.lax.dynamic_slice_in_dim(vectors, start, block)
            values = self.family.values(parameters.functions, some if prepare is None else prepare(some, start))
            codes = pack(values.reshape(block, self.num_tables, self.num_hashes), self.family.num_bits)
            codes = fold(codes, parameters.salts, self.num_bits, self.num_buckets)
            valid = start + jnp.arange(block) < num_valid
            codes = jnp.where(valid[:, None], codes, jnp.uint32(self.num_buckets))
            return jax.lax.dynamic_update_slice_in_dim(into, codes, start, axis=0)

        if block == rows:
            return of_block(jnp.int32(0), into)
        return jax.lax.fori_loop(0, -(-rows // block), of_block, into)

    def log_same_bucket(self, x: Float[Array, "*g Q dim"], y: Float[Array, "*g n dim"]) -> Float[Array, "*g Q n"]:
        """log(p^K), or log(p^K + (1 - p^K) / M) where codes are folded: two vectors share a bucket of one table."""
        log_both = self.num_hashes * self.family.log_collision(x, y)
        if self.num_buckets >= 1 << self.num_bits:
            return log_both
        both = jnp.exp(log_both)
        return jnp.log(both + (1 - both) / self.num_buckets)


def log_not_found(
    log_same_bucket: Float[Array, "..."], num_tables: Float[Array, "..."] | Int[Array, "..."] | int
) -> Float[Array, "..."]:
    """L log(1 - b), b the probability of sharing a bucket: that a class is in none of L tables; 0 for no tables.

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), theorems 1
        and 2; Spring and Shrivastava, A New Unbiased and Efficient Class of LSH-Based Samplers and Estimators for
        Partition Function Computation in Log-Linear Models (2017).
    """
    tables = jnp.asarray(num_tables, jnp.float32)
    same = jnp.minimum(jnp.exp(log_same_bucket), 1.0)
    return jnp.where(tables > 0, tables * jnp.log1p(-jnp.where(tables > 0, same, 0.0)), 0.0)
