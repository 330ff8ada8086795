"""The index of an LSH sampler: hash parameters and tables, built from the classes and updated by rows."""

from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.base import Classes, KeyArray, Query, pytree
from candax.checks import check_positive
from candax.samplers.common.groups import count_groups, counting
from candax.samplers.common.keys import Near, class_keys, longest_key, query_keys
from candax.samplers.common.pending import Pending, nothing_pending, wait_or_move
from candax.samplers.lsh.codes import BucketHash, Hasher, HashFamily, check_bits
from candax.samplers.lsh.edits import Eviction
from candax.samplers.lsh.tables import Tables, build, empty_tables, update

QueryVector: TypeAlias = Literal["embedding", "label"]

# By default there are enough buckets to hold this many times all classes.
_ROOM = 4
# Without a capacity there are at most this many buckets, because each has room for all classes.
_MOST_UNBOUNDED = 1 << 16


@pytree
class LSHState:
    """Hash parameters, tables, the number of valid classes, and updates since the tables were built.

    With ``near="logit"`` also the biases and the largest length of class vectors, biases included, at that time; where
    tables are updated after several steps together, also the changed rows that wait.
    """

    hash: BucketHash
    tables: Tables
    num_valid: Int[Array, ""]
    updates: Int[Array, ""]
    biases: Float[Array, " num_classes"] | None
    longest: Float[Array, ""] | None
    pending: Pending | None


class Queries(NamedTuple):
    """The vectors that each group looks up; ``valid`` is False where one is padding, or of an example left out."""

    vectors: Float[Array, "G Q dim"]
    valid: Bool[Array, "G Q"]


class Index(NamedTuple):
    """The static numbers of an index, and what can be done with its state. See ``lsh`` for the arguments."""

    query: QueryVector
    family: HashFamily
    num_hashes: int
    num_tables: int
    num_buckets: int | None
    capacity: int | None
    eviction: Eviction
    update_every: int | None
    near: Near
    pending_rows: int = 1

    def check(self) -> None:
        """Raises ValueError for numbers out of range."""
        for name in ("num_hashes", "num_tables", "pending_rows"):
            check_positive(name, getattr(self, name))
        for name in ("num_buckets", "capacity", "update_every"):
            check_positive(name, getattr(self, name), optional=True)
        check_bits(self.num_hashes, self.family.num_bits)
        bits, buckets = self.num_hashes * self.family.num_bits, self.num_buckets
        if buckets is not None and (buckets & (buckets - 1) or buckets > 1 << bits):
            raise ValueError(
                f"expected num_buckets to be a power of two and at most the number of codes, 2^{bits}, got {buckets}."
            )

    def sizes(self, num_classes: int) -> tuple[int, int]:
        """Buckets per table, and places per bucket."""
        codes = 1 << (self.num_hashes * self.family.num_bits)
        capacity = num_classes if self.capacity is None else self.capacity
        if self.num_buckets is not None:
            return self.num_buckets, capacity
        if self.capacity is None:
            return min(codes, _MOST_UNBOUNDED), capacity
        wanted = -(-_ROOM * num_classes // capacity)
        return min(codes, 1 << (wanted - 1).bit_length()), capacity

    def hasher(self, num_buckets: int) -> Hasher:
        """The hash functions, down to the number of a bucket."""
        return Hasher(self.family, self.num_hashes, self.num_tables, num_buckets)

    def build(self, key: KeyArray, classes: Classes) -> LSHState:
        """Hash functions, and tables of all valid classes; compiled."""
        tables = empty_tables(classes.num_classes, self.num_tables, *self.sizes(classes.num_classes))
        return _fill(self, tables, key, classes)

    def refresh(self, state: LSHState, key: KeyArray, classes: Classes) -> LSHState:
        """New hash functions, and tables written into the memory of the old ones. To be jitted."""
        return self.fill(state.tables, key, classes)

    def fill(self, tables: Tables, key: KeyArray, classes: Classes) -> LSHState:
        """Draws new hash functions and puts the classes into the tables, whatever these held."""
        key_hash, key_build = jax.random.split(key)
        hasher = self.hasher(tables.buckets.shape[1])
        longest, biases = longest_key(classes, self.near), None
        if longest is not None and classes.biases is not None:
            # A copy, because the training step donates both the biases and the state, and no buffer may be donated
            # twice.
            biases = jnp.array(classes.biases, jnp.float32, copy=True)
        parameters = hasher.init(key_hash, classes.vectors.shape[1] + (0 if longest is None else 2))

        def prepare(rows: Array, start: Array) -> Array:
            some = None if biases is None else jax.lax.dynamic_slice_in_dim(biases, start, rows.shape[0])
            return class_keys(rows, some, longest)

        codes = hasher.buckets_into(parameters, classes.vectors, tables.codes, classes.num_valid, prepare)
        built = build(tables, key_build, codes)
        number = classes.num_valid.astype(jnp.int32)
        pending = nothing_pending(self.pending_rows, classes, self.update_every)
        return LSHState(parameters, built, number, jnp.int32(0), biases, longest, pending)

    def follow(self, state: LSHState, key: KeyArray, row_ids: Array, rows: Array) -> LSHState:
        """Moves the changed classes to their new buckets, or remembers them until it is time to move them."""
        num_buckets = state.tables.buckets.shape[1]
        hasher = self.hasher(num_buckets)
        updates, num_valid = state.updates + 1, state.num_valid

        def move(tables: Tables, ids: Int[Array, " n"], vectors: Float[Array, "n dim"]) -> Tables:
            codes = hasher.buckets(state.hash, self.keys(state, ids, vectors))
            codes = jnp.where((ids < num_valid)[:, None], codes, jnp.uint32(num_buckets))
            # Rows that waited move in parts, each with draws of its own: no two parts begin with the same id.
            own = key if state.pending is None else jax.random.fold_in(key, ids[0])
            return update(tables, own, ids, codes, eviction=self.eviction)

        tables, pending = wait_or_move(
            state.pending, updates, row_ids, rows, num_valid, every=self.update_every, move=move, index=state.tables
        )
        return LSHState(state.hash, tables, num_valid, updates, state.biases, state.longest, pending)

    def keys(self, state: LSHState, ids: Int[Array, "*n"], vectors: Float[Array, "*n dim"]) -> Float[Array, "*n wider"]:
        """What is hashed for these ids, given their class vectors; any finite numbers for ids that are not classes."""
        biases = None if state.biases is None else state.biases.at[ids].get(mode="fill", fill_value=0.0)
        return class_keys(vectors, biases, state.longest)

    def queries(self, state: LSHState, query: Query, num_groups: int | None) -> Queries:
        """What is hashed for each group: its examples' embeddings, or the class vectors of all their labels."""
        groups = count_groups(num_groups, query)
        if self.query == "embedding":
            vectors = query.embeddings.reshape(groups, -1, query.embeddings.shape[1])
            if state.longest is not None:
                vectors = query_keys(vectors, query.classes, extended=True)
            return Queries(vectors, counting(query, groups))
        labels = query.labels.reshape(groups, -1)
        ids = jnp.maximum(labels, 0)
        return Queries(self.keys(state, ids, query.classes.vectors[ids]), labels >= 0)

    def codes(self, state: LSHState, queries: Queries) -> UInt32[Array, "G Q tables"]:
        """The buckets that the queries look into."""
        groups, number, dim = queries.vectors.shape
        flat = queries.vectors.reshape(groups * number, dim)
        codes = self.hasher(state.tables.buckets.shape[1]).buckets(state.hash, flat)
        return codes.reshape(groups, number, self.num_tables)


_fill = jax.jit(Index.fill, static_argnums=0, donate_argnums=1)
