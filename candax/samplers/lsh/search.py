"""LSH used as search: all buckets are read, and the best of what they hold is scored exactly."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Sampler, never, no_update
from candax.checks import check_positive
from candax.samplers.common.keys import Near
from candax.samplers.common.returned import log_count_of_returned
from candax.samplers.common.scoring import logits_of
from candax.samplers.common.shares import divisible
from candax.samplers.lsh.codes import HashFamily
from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.edits import Eviction
from candax.samplers.lsh.index import Index, LSHState, QueryVector
from candax.samplers.lsh.retrieve import distinct, read

# Class rows gathered at a time, as numbers.
_SCRATCH = 1 << 24


@divisible("k")
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
    schedule: Callable[[int], bool] = never,
) -> Sampler:
    """The k best of all classes that share a bucket with the query, by their logits: LSH as approximate search.

    Of the classes in the L buckets of an example the k with the largest embeddings_b . vectors_c + biases_c stay, one
    set an example, each with expected count 1: like ``top_k``, it is deterministic given the index, and nothing
    corrects for the classes outside. ``log_expected_count`` is 0 for the set and for the labels, -inf for others.

    A draw scores L * capacity rows an example, some at a time: the cost that sampling from the buckets avoids.

    Args:
        k: slots; those in excess of the classes found are masked.
        query: as in ``lsh``; with several labels the buckets of all are searched. Scored is always the embedding.
        num_tables: L.
        num_hashes: K, hash functions a table.
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
    check_positive("k", k)
    family = dwta() if hash is None else hash
    sizes = (num_hashes, num_tables, num_buckets, capacity)
    index = Index(query, family, *sizes, eviction, update_every, near, pending_rows)
    index.check()
    init, update, refresh = index.functions()

    def sample(state: LSHState, key: KeyArray, query: Query) -> Candidates:
        queries = index.queries(state, query, None)
        entries = read(state.tables, key, index.codes(state, queries), queries.valid, None)
        found = distinct(entries.ids).ids
        classes = query.classes

        def best(example: tuple[Float[Array, "dim"], Int[Array, "W"]]) -> tuple[Array, Array]:
            embedding, ids = example
            real = ids < state.num_valid
            at = jnp.where(real, ids, 0)
            logits = jnp.where(real, logits_of(embedding, at, classes), -jnp.inf)
            scores, place = jax.lax.top_k(logits, min(k, ids.shape[0]))
            return jnp.where(scores > -jnp.inf, at[place], 0), scores > -jnp.inf

        rows = max(1, _SCRATCH // (found.shape[1] * classes.vectors.shape[1]))
        ids, mask = jax.lax.map(best, (query.embeddings, found), batch_size=min(rows, found.shape[0]))
        short = ((0, 0), (0, k - ids.shape[1]))
        ids, mask = jnp.pad(ids, short), jnp.pad(mask, short)
        return Candidates(ids, jnp.zeros(ids.shape), mask)

    def log_expected_count(
        state: LSHState, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del state
        return log_count_of_returned(candidates, ids, query)

    facts = Facts(covers_all=False, draw_independent=True, with_replacement=False, exact=True, law_over="draw")
    update = no_update if update_every is None else update
    return Sampler(init, sample, log_expected_count, update, refresh, schedule, facts)
