"""Retrievers as samplers: each example's candidates are the classes that an index finds for it."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Retriever, Sampler, State, never, no_follow, no_update
from candax.checks import check_positive, checked
from candax.samplers.common.schedules import schedule_of
from candax.samplers.common.shares import divisible


@checked
@divisible("k")
def retrieved(retriever: Retriever, k: int, *, schedule: int | Callable[[int], bool] = never) -> Sampler:
    """The k best classes that a retriever finds for each example, one set per example (G = B, S = k).

    Each has expected count 1. Retrieval is deterministic given the index: classes outside the set have expected count
    0, so nothing corrects for them and a loss sees a biased normalizer.

    The candidate set stands for the k best *and* the labels (a head scores true classes separately and marks hits), so
    ``log_expected_count`` is 0 for both and -inf for every other class. So it cannot be part of a ``mixture``, which
    adds counts: put it before a tail, ``with_tail``.

    Args:
        retriever: finds the classes: ``exact_index``, ``ivf_index``, ``lsh_index``, ``forest_index``, ``label_index``,
            or your own. A retriever also goes into ``grouped``; this sampler goes into ``with_tail`` and ``resampled``.
        k: classes per example. Slots in excess of the classes found are masked.
        schedule: when the loop refreshes the index: every so many steps, or ``(step) -> bool``.

    Returns:
        A ``Sampler`` whose state is the index; the ``draw`` of its candidates holds their scores.

    Raises:
        ValueError: if ``k`` is not positive.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> sampler = cx.samplers.retrieved(cx.samplers.exact_index(), 2)
        >>> query = cx.Query(jnp.array([[0.1, 0.4, 0.3]]), jnp.array([[0]]), cx.Classes(jnp.eye(3)))
        >>> candidates = sampler.sample((), jax.random.key(0), query)
        >>> candidates.ids.tolist(), candidates.log_expected_count.tolist()
        ([[1, 2]], [[0.0, 0.0]])
    """
    check_positive("k", k)

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        del key
        scores, ids = retriever.search(state, query, k)
        return Candidates(ids, jnp.zeros(ids.shape, jnp.float32), scores > -jnp.inf, draw=scores)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del state
        returned = (ids[:, :, None] == candidates.ids[:, None, :]) & candidates.mask[:, None, :]
        known = returned.any(axis=-1) | (ids[:, :, None] == query.labels[:, None, :]).any(axis=-1)
        return jnp.where(known, jnp.float32(0), -jnp.inf)

    def update(state: State, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> State:
        del query
        return retriever.follow(state, key, row_ids, rows)

    facts = Facts(covers_all=False, draw_independent=True, with_replacement=False, counts_labels=True)
    follows = no_update if retriever.follow is no_follow else update
    return Sampler(
        retriever.build, sample, log_expected_count, follows, retriever.refresh, schedule_of(schedule), facts
    )
