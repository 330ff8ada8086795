"""Buckets: the classes that lie in the directions that the batch's embeddings spread in, shared by all its examples."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Retriever, Sampler, State, never
from candax.checks import check_positive, checked
from candax.cosines import widened
from candax.samplers.common.found import EMPTY, distinct, is_found, or_empty
from candax.samplers.common.groups import count_groups, counting
from candax.samplers.common.shares import divisible
from candax.samplers.retrieved import retrieved


@checked
@divisible("k")
def buckets(
    retriever: Retriever,
    k: int,
    *,
    num_directions: int = 16,
    num_groups: int | None = 1,
    schedule: int | Callable[[int], bool] = never,
) -> Sampler:
    """Classes of large logit for some example of the batch, at the cost of a few searches: the buckets of SCE.

    A bucket is the k best classes for a random direction among the embeddings of a group,

        direction_m = sum_b w_mb embeddings_b,    w_mb standard normal,

    scaled to the embeddings' mean length; examples without a label, where others have one, are left out. All examples
    of a group share its buckets: ``num_directions`` searches stand in for one per example. A direction and its opposite
    are equally likely, so that half of the buckets hold classes that most examples are far from.

    **Counts.** As in ``retrieved``, classes found and labels have expected count 1 and all others 0: nothing corrects
    for what was not found. Put it before a tail, ``with_tail(buckets(...), unigram(...))``, whose counts are right for
    every class. Alone its counts are approximations (``facts.exact`` is False), as other directions find other classes.

    Args:
        retriever: finds the classes: ``exact_index`` as in the paper, which scores all classes for each direction, or
            ``ivf_index``, whose cost does not grow with their number.
        k: classes per direction.
        num_directions: directions per group. Slots: ``k num_directions``; those of classes found twice are masked.
        num_groups: groups per batch; None: one per example, for which every direction is its own embedding or the
            opposite.
        schedule: when the loop refreshes the index: every so many steps, or ``(step) -> bool``.

    Returns:
        A ``Sampler`` whose state is the index.

    Raises:
        ValueError: for numbers below 1; in ``sample`` if the groups do not divide the batch.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> head = cx.samplers.buckets(cx.samplers.exact_index(), 2, num_directions=4)
        >>> sampler = cx.samplers.with_tail(head, cx.samplers.uniform(3))
        >>> classes = cx.Classes(jnp.eye(6))
        >>> query = cx.Query(jnp.eye(6)[:2], jnp.array([[0], [1]]), classes)
        >>> sampler.sample(sampler.init(jax.random.key(0), classes), jax.random.key(1), query).ids.shape
        (1, 11)

    Source: Mezentsev et al., Scalable Cross-Entropy Loss for Sequential Recommendations with Large Item Catalogs
        (2024), algorithm 1, where an example meets the classes of those buckets alone that it is itself among the best
        of, the directions may also be drawn without regard to the embeddings, and nothing stands for other classes.
    """
    check_positive("num_directions", num_directions)
    check_positive("num_groups", num_groups, optional=True)
    alone = retrieved(retriever, k, schedule=schedule)

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        groups = count_groups(num_groups, query)
        scores, ids = retriever.search(state, _directions(key, query, groups, num_directions), k)
        found = distinct(jnp.where(scores > -jnp.inf, ids, EMPTY).reshape(groups, -1)).ids
        mask = found != EMPTY
        return Candidates(jnp.where(mask, found, 0), jnp.zeros(mask.shape, jnp.float32), mask, draw=found)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del state
        labels = or_empty(query.labels).reshape(ids.shape[0], -1)
        known = is_found(candidates.draw, ids) | is_found(jnp.sort(labels, axis=1), ids)
        return jnp.where(known, jnp.float32(0), -jnp.inf)

    facts = Facts(
        covers_all=False, draw_independent=False, with_replacement=False, exact=False, of_batch=num_groups == 1
    )
    return alone._replace(sample=sample, log_expected_count=log_expected_count, facts=facts)


def _directions(key: KeyArray, query: Query, groups: int, number: int) -> Query:
    """Random directions among each group's embeddings, which are as long as these on average, without labels."""
    # Squares of long embeddings are beyond what 16 bits hold.
    embeddings = widened(query.embeddings)
    counts = counting(query, groups)
    own = jnp.where(counts[:, :, None], embeddings.reshape(*counts.shape, embeddings.shape[1]), 0)
    mixed = jnp.einsum("gmb,gbd->gmd", jax.random.normal(key, (groups, number, own.shape[1]), own.dtype), own)
    squares = (
        jnp.sum(own * own, axis=(1, 2)) / jnp.sum(counts, axis=1).astype(own.dtype),
        jnp.mean(jnp.sum(mixed * mixed, axis=2), axis=1),
    )
    of_own, of_mixed = (jnp.sqrt(square)[:, None, None] for square in squares)
    mixed = mixed * (of_own / jnp.maximum(of_mixed, jnp.finfo(own.dtype).tiny))
    labels = jnp.full((groups * number, query.labels.shape[1]), -1, query.labels.dtype)
    return Query(mixed.reshape(groups * number, -1).astype(query.embeddings.dtype), labels, query.classes)
