"""LSH used as search: all buckets of a query are read, and what they hold is scored exactly, to keep the best."""

from collections.abc import Callable

import jax
from jaxtyping import Array

from candax.base import Query, Retriever, Sampler, never, no_follow
from candax.checks import checked
from candax.samplers.common.found import distinct
from candax.samplers.common.keys import Near
from candax.samplers.common.scoring import best_of
from candax.samplers.common.shares import divisible
from candax.samplers.lsh.codes import HashFamily
from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.edits import Eviction
from candax.samplers.lsh.index import Index, LSHState, QueryVector
from candax.samplers.lsh.retrieve import read
from candax.samplers.retrieved import retrieved


@checked
@divisible()
def lsh_index(
    query: QueryVector = "embedding",
    *,
    num_tables: int,
    num_hashes: int,
    hash: HashFamily | None = None,
    near: Near = "vector",
    num_buckets: int | None = None,
    capacity: int | None = 64,
    eviction: Eviction = "fifo",
    update_every: int | None = 1,
    pending_rows: int = 1 << 15,
) -> Retriever:
    """The index of ``lsh_top_k`` by itself: the best classes that share a bucket with the query.

    The arguments are those of ``lsh_top_k``. With ``query="label"`` a search without labels finds nothing.

    Returns:
        A ``Retriever``; its state is an ``LSHState``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, candax as cx
        >>> classes = cx.Classes(jax.random.normal(jax.random.key(0), (64, 4)))
        >>> index = cx.samplers.lsh_index(hash=cx.samplers.simhash(), num_tables=4, num_hashes=2)
        >>> state = index.build(jax.random.key(1), classes)
        >>> jax.jit(index.find, static_argnums=3)(state, classes.vectors[:2], classes, 5)[1].shape
        (2, 5)
    """
    family = dwta() if hash is None else hash
    sizes = (num_hashes, num_tables, num_buckets, capacity)
    index = Index(query, family, *sizes, eviction, update_every, near, pending_rows)
    index.check()

    def search(state: LSHState, query: Query, k: int) -> tuple[Array, Array]:
        queries = index.queries(state, query, None)
        # All buckets are read in full, so the key, which would choose parts of them, plays no role.
        entries = read(state.tables, jax.random.key(0), index.codes(state, queries), queries.valid, None)
        return best_of(query, distinct(entries.ids).ids, k)

    follows = no_follow if update_every is None else index.follow
    return Retriever(index.build, search, follows, index.refresh, "lsh")


@checked
def lsh_top_k(
    k: int,
    query: QueryVector = "embedding",
    *,
    num_tables: int,
    num_hashes: int,
    hash: HashFamily | None = None,
    near: Near = "vector",
    num_buckets: int | None = None,
    capacity: int | None = 64,
    eviction: Eviction = "fifo",
    update_every: int | None = 1,
    pending_rows: int = 1 << 15,
    schedule: int | Callable[[int], bool] = never,
) -> Sampler:
    """The k best of all classes that share a bucket with the query, by their logits: LSH as approximate search.

    Of the classes in the L buckets of an example, the k with the largest embeddings_b . vectors_c + biases_c are kept,
    one set per example, each class with expected count 1: like ``top_k``, it is deterministic given the index, and
    nothing corrects for the classes outside; see ``retrieved``.

    A draw scores L * capacity rows per example, some at a time: the cost that sampling from the buckets avoids.

    Args:
        k: slots; those in excess of the classes found are masked.
        query: as in ``lsh``; with several labels the buckets of all are searched. Scores always go by the embedding.
        num_tables: L.
        num_hashes: K, hash functions per table.
        hash: ``simhash()`` or ``dwta(m)``; default ``dwta(8)``.
        near: as in ``lsh``.
        num_buckets: M, as in ``lsh``.
        capacity: as in ``lsh``.
        eviction: as in ``lsh``.
        update_every: as in ``lsh``.
        pending_rows: as in ``lsh``.
        schedule: as in ``lsh``.

    Returns:
        A ``Sampler``; its state is an ``LSHState``.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.array([[1.0, 0.1], [0.9, 0.0], [-1.0, 0.0]]), None, None, jnp.int32(3))
        >>> sampler = cx.samplers.lsh_top_k(1, hash=cx.samplers.simhash(), num_tables=4, num_hashes=3)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[2.0, 0.1]]), jnp.array([[2]]), classes)
        >>> sampler.sample(state, jax.random.key(1), query).ids.tolist()
        [[0]]

    Source: the standard LSH procedure that Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling
        Distributions (2021), compare with in section 2.1 (comment 2); Vijayanarasimhan et al., Deep Networks With Large
        Output Spaces (2014).
    """
    index = lsh_index(
        query,
        num_tables=num_tables,
        num_hashes=num_hashes,
        hash=hash,
        near=near,
        num_buckets=num_buckets,
        capacity=capacity,
        eviction=eviction,
        update_every=update_every,
        pending_rows=pending_rows,
    )
    return retrieved(index, k, schedule=schedule)
