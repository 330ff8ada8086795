"""LSH samplers: candidates near the input's embedding or near the true class, found by hashing."""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Sampler, never, no_update
from candax.checks import check_positive, checked
from candax.samplers.common.found import distinct, is_found, thin, thin_and_fill
from candax.samplers.common.keys import Near
from candax.samplers.common.schedules import schedule_of
from candax.samplers.common.shares import divisible
from candax.samplers.lsh.codes import HashFamily, log_not_found
from candax.samplers.lsh.dwta import dwta
from candax.samplers.lsh.edits import Eviction
from candax.samplers.lsh.index import Index, LSHState, QueryVector
from candax.samplers.lsh.retrieve import read

# Entries read for each slot: some of them repeat.
_READS = 2


@checked
@divisible("budget", "num_fill")
def lsh(
    query: QueryVector = "embedding",
    *,
    num_tables: int,
    num_hashes: int,
    hash: HashFamily | None = None,
    near: Near = "vector",
    budget: int | None = None,
    take: Literal["tables", "all"] = "tables",
    fill: Literal["uniform"] | None = None,
    num_fill: int | None = None,
    num_groups: int | None = None,
    num_buckets: int | None = None,
    capacity: int | None = 64,
    eviction: Eviction = "fifo",
    update_every: int | None = 1,
    pending_rows: int = 1 << 15,
    schedule: int | Callable[[int], bool] = never,
) -> Sampler:
    """Classes that share a bucket with a query vector in one of L hash tables: LSH Embedding and LSH Label.

    The query vectors of a group are its examples' embeddings ("embedding"), without those that have no label where
    others do (padding), or the class vectors of all their labels ("label"). A query looks into one bucket of each
    table, from a random table on, until the group's budget is used, which its queries share evenly. Distinct classes
    are the candidates. The labels themselves are not removed: with "label" they are always found, as hits for the head
    (in a shared set they may be candidates of other examples); they cost no budget but one slot each.

    **Expected counts.** With p the probability that one hash function gives query and class the same value (``hash``
    knows it), b = p^K that a table does, or b = p^K + (1 - p^K) / M where codes are folded into M buckets:

    - ``capacity=None``, one embedding per group, no ``budget`` or ``take="all"``: 1 - (1 - b)^L, times S / n where
      n > S classes were found (a uniformly random S of them stay). Exact over index and draw: with a new index for each
      draw. After ``update`` still exact for the present vectors, as far as these do not depend on the hash functions;
      between updates that move rows (``update_every`` other than 1) approximate: see there.
    - Otherwise 1 - prod over queries (1 - b share)^T, times S / n: T tables were visited, and ``share`` of the classes
      of their buckets was read, on average. Approximate (``facts.exact`` is False): it treats buckets, queries and
      tables as independent, and the number of tables that the quota reached as independent of the class. Several
      queries of one group share their hash functions, so that together they find less than this says.
    - ``fill="uniform"``: all slots that stay free, at least ``num_fill``, take uniformly random classes that were not
      found. Given the n found classes H, counts are min(1, (S - num_fill) / n) for members of H and
      F / (num_valid - n) for the F others: exact, whatever capacity, budget, groups and stale tables did, because H is
      taken as it is. No collision probabilities are computed then.

    Where a loss uses no counts, the compiler drops them. Otherwise they cost O(Q * n * dim) per group for SimHash, and
    O(Q * n * dim^2) for DWTA.

    **Memory** of the state: 4 L (num_classes + M (capacity + 1)) bytes, the hash parameters, and rows that wait. A draw
    costs O(K L) for each query and O(budget), an update O(rows * K * L), whatever the number of classes.

    Args:
        query: which vector looks for candidates.
        num_tables: L.
        num_hashes: K, hash functions per table.
        hash: ``simhash()`` or ``dwta(m)``; default ``dwta(8)``.
        near: "vector": candidates have a vector w like the query's, in the sense of the hash family (the paper's way:
            length and bias play no part). "logit": vectors are extended by bias and length,
            ``(w, b, sqrt(M^2 - |w|^2 - b^2))`` with M the largest length, and embeddings to ``(e, 1, 0)``, so that the
            angle falls with the logit e . w + b; use it with ``simhash()``. Biases and M are those of the last refresh.
        budget: S, slots of a candidate set (the paper's sparsity times num_classes). None: room for all that can be
            found, at most num_classes.
        take: "tables": at most 2 S entries per group are read, repeats included, table by table; "all": all buckets are
            read, and a random S of the classes found are kept.
        fill: None: slots that stay free are masked; "uniform": they take random classes.
        num_fill: slots that found classes cannot take, with ``fill``. Default: an eighth of the budget, at least 1.
        num_groups: G, candidate sets per batch; None: one per example.
        num_buckets: M, a power of two of at most 2^(bits of K values). Default: that number, or as many as have room
            for 4 to 8 times all classes, if that is less; 2^16 at most where ``capacity`` is None.
        capacity: the most classes that a bucket keeps; None: all.
        eviction: what a full bucket does on an update, see ``update`` in ``candax.samplers.lsh.tables``.
        update_every: 1: after each step the rows it changed move to their new buckets; n: those of n steps move
            together, each once; None: tables change at refreshes only. Counts assume the present vectors, so that with
            n or None those of classes that have changed since are approximate (``facts.exact`` is False): a class that
            came near the query is found less often than stated. Not so with ``fill``.
        pending_rows: room for rows that wait, with ``update_every`` > 1: 4 (dim + 1) bytes each, at least as many as
            one step can change. They move sooner if there might be no room for those of another step.
        schedule: when to rebuild the tables with new hash functions: every so many steps, or ``(step) -> bool``, for
            instance ``exponential_schedule()``.

    Returns:
        A ``Sampler``; its state is an ``LSHState``.

    Raises:
        ValueError: for numbers out of range or arguments that do not belong together.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> from candax.samplers import lsh, simhash
        >>> classes = cx.Classes(jnp.array([[1.0, 0.1], [0.9, 0.0], [-1.0, 0.0]]), None, None, jnp.int32(3))
        >>> sampler = lsh(hash=simhash(), num_tables=4, num_hashes=3, capacity=None)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[2.0, 0.1]]), jnp.array([[2]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> candidates.ids[candidates.mask].tolist()
        [0, 1]

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), algorithms
        1 to 5, theorems 1 and 2; as an unbiased estimator: Spring and Shrivastava, A New Unbiased and Efficient Class
        of LSH-Based Samplers and Estimators for Partition Function Computation in Log-Linear Models (2017);
        ``near="logit"``: Neyshabur and Srebro, On Symmetric and Asymmetric LSHs for Inner Product Search (2015).
    """
    family = dwta() if hash is None else hash
    sizes = (num_hashes, num_tables, num_buckets, capacity)
    index = Index(query, family, *sizes, eviction, update_every, near, pending_rows)
    index.check()
    check_positive("budget", budget, optional=True)
    check_positive("num_groups", num_groups, optional=True)
    kept_for_fill = _check_fill(fill, num_fill, budget)

    def sample(state: LSHState, key: KeyArray, query: Query) -> Candidates:
        key_read, key_choose = jax.random.split(key)
        queries = index.queries(state, query, num_groups)
        number = queries.valid.shape[1]
        reads = None
        if budget is not None and take == "tables":
            reads = _READS * budget + (number if index.query == "label" else 0)
        entries = read(state.tables, key_read, index.codes(state, queries), queries.valid, reads)
        found = distinct(entries.ids)
        if fill is not None:
            assert budget is not None
            ids, mask, *logs = thin_and_fill(key_choose, found, budget, kept_for_fill, state.num_valid)
            draw: Any = (found, *logs)
        elif budget is None:
            held = found.ids[:, : query.classes.num_classes]
            mask = held < query.classes.num_classes
            ids, draw = jnp.where(mask, held, 0), (entries.num_tables, entries.share, jnp.zeros(held.shape[0]))
        else:
            ids, mask, log_kept = thin(key_choose, found, budget)
            draw = (entries.num_tables, entries.share, log_kept)
        counts = log_expected_count(state, Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw), ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, draw)

    def log_expected_count(
        state: LSHState, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        valid = ids < state.num_valid
        if fill is not None:
            found, log_kept, log_fill = candidates.draw
            counts = jnp.where(is_found(found.ids, ids), log_kept[:, None], log_fill[:, None])
            return jnp.where(valid, counts, -jnp.inf)
        tables, share, log_kept = candidates.draw
        queries = index.queries(state, query, num_groups)
        rows = query.classes.vectors[ids]
        rows = index.keys(state, ids, jnp.where(valid[..., None], rows, jnp.zeros_like(rows)))
        hasher = index.hasher(state.tables.buckets.shape[1])
        log_same = hasher.log_same_bucket(queries.vectors, rows)
        log_read = log_same + jnp.log(jnp.maximum(share, jnp.finfo(jnp.float32).tiny))[:, :, None]
        missed = jnp.sum(log_not_found(log_read, tables[:, :, None]), axis=1)
        return jnp.where(valid, jnp.log(-jnp.expm1(missed)) + log_kept[:, None], -jnp.inf)

    alone = index.query == "embedding" and num_groups is None
    unbounded = capacity is None and (budget is None or take == "all")
    # Tables hold the codes of vectors as they were when these last moved. The biases and lengths of near="logit" are
    # those of the last refresh in tables and counts alike.
    current = update_every == 1
    facts = Facts(
        covers_all=fill is not None or family.always_collides,
        draw_independent=budget is None or take == "all",
        with_replacement=False,
        exact=fill is not None or (family.exact and alone and unbounded and current),
        law_over="draw" if fill is not None else "index",
        of_batch=num_groups == 1,
    )

    def update(state: LSHState, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> LSHState:
        del query
        return index.follow(state, key, row_ids, rows)

    follows = no_update if update_every is None else update
    return Sampler(index.build, sample, log_expected_count, follows, index.refresh, schedule_of(schedule), facts)


def _check_fill(fill: str | None, num_fill: int | None, budget: int | None) -> int:
    """The slots kept for the fill."""
    check_positive("num_fill", num_fill, optional=True)
    if fill is None:
        if num_fill is not None:
            raise ValueError(
                f'expected fill="uniform" beside num_fill, got {fill!r}. Pass both, or leave num_fill out.'
            )
        return 0
    if budget is None or budget < 2:
        raise ValueError(f'expected a budget of at least 2 slots with fill="uniform", got budget={budget!r}.')
    slots = max(1, budget // 8) if num_fill is None else num_fill
    if slots >= budget:
        raise ValueError(f"expected num_fill < budget, got num_fill={num_fill} of {budget} slots.")
    return slots
