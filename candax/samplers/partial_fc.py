"""Partial FC: the labels of the batch, filled up with uniformly drawn other classes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Facts, KeyArray, Query, Sampler, never, no_update
from candax.checks import check_positive, checked
from candax.samplers.common.found import EMPTY, Found, distinct, is_found, or_empty
from candax.samplers.common.groups import count_groups
from candax.samplers.common.shares import divisible
from candax.samplers.static import StaticState, uniform


@checked
@divisible("num_sampled")
def partial_fc(num_sampled: int, *, num_groups: int | None = 1) -> Sampler:
    """All labels of a group's examples, and uniformly drawn other classes up to exactly ``num_sampled`` distinct ids.

    With P distinct labels in the group and n valid classes, a label is a candidate for sure, any other class with
    probability (S - P) / (n - P), without replacement. So the reported log counts are 0 and
    log((S - P) / (n - P)): given the batch only the fill is random, so given the batch the one law holds exactly. A
    label of another example of the group is a sampled class like any other.

    The published method trains on the candidates without a correction: that is ``losses.subset_softmax``, which reads
    no counts. With ``losses.css`` the same candidates estimate the full softmax.

    Where a group has more than S distinct labels, a uniformly drawn S of them are kept; labels then have count
    log(S / P) and all other classes -inf. Choose S larger than the number of labels of a group.

    Args:
        num_sampled: S, candidates per group.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.

    Returns:
        A ``Sampler``; its state is that of ``uniform`` without replacement. Slots in excess of the valid classes are
        masked.

    Raises:
        ValueError: if a number is not positive, or when a batch cannot be cut into ``num_groups`` groups.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((50, 4)), None, None, jnp.int32(50))
        >>> sampler = cx.samplers.partial_fc(6)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((2, 4)), jnp.array([[7], [3]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> candidates.ids[0, :2].tolist(), len(set(candidates.ids[0].tolist()))
        ([3, 7], 6)
        >>> [round(float(x), 3) for x in jnp.exp(candidates.log_expected_count[0, 1:3])]  # 1, and 4 / 48
        [1.0, 0.083]

    Source: An et al., Partial FC: Training 10 Million Identities on a Single Machine (2021), section 3.3.
    """
    check_positive("num_sampled", num_sampled)
    check_positive("num_groups", num_groups, optional=True)
    fill = uniform(num_sampled, num_groups=num_groups, replacement=False)

    def sample(state: StaticState, key: KeyArray, query: Query) -> Candidates:
        key_fill, key_positives = jax.random.split(key)
        positives = distinct(or_empty(query.labels).reshape(count_groups(num_groups, query), -1))
        # Of S distinct uniform classes at least S - P are not labels, and the first S - P of these are a uniform draw.
        drawn = fill.sample(state, key_fill, query)
        is_free = drawn.mask & ~is_found(positives.ids, drawn.ids)
        ids, mask = jax.vmap(_join)(_kept(key_positives, positives, num_sampled), drawn.ids, is_free)
        joined = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw=positives)
        counts = log_expected_count(state, joined, ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, draw=positives)

    def log_expected_count(
        state: StaticState, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        positives, num_valid = candidates.draw, state.table
        number = positives.number.astype(jnp.float32)
        of_label = jnp.log(jnp.minimum(num_sampled / jnp.maximum(number, 1), 1))
        share = (num_sampled - number) / jnp.maximum(num_valid.astype(jnp.float32) - number, 1)
        of_other = jnp.where(share > 0, jnp.log(jnp.clip(share, jnp.finfo(jnp.float32).tiny, 1)), -jnp.inf)
        counts = jnp.where(is_found(positives.ids, ids), of_label[:, None], of_other[:, None])
        return jnp.where(ids < num_valid, counts, -jnp.inf)

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=False, of_batch=num_groups == 1)
    return Sampler(fill.init, sample, log_expected_count, no_update, fill.refresh, never, facts)


def _kept(key: KeyArray, positives: Found, num_sampled: int) -> Int[Array, "G K"]:
    """The positives of each group, at most ``num_sampled`` of them."""
    ids = positives.ids
    if ids.shape[1] <= num_sampled:
        return ids
    order = jnp.where(ids < EMPTY, jax.random.uniform(key, ids.shape), 2.0)
    # Where all are kept, they stay in the order of their ids, whatever the key.
    order = jnp.where((positives.number > num_sampled)[:, None], order, jnp.arange(ids.shape[1]))
    return jnp.take_along_axis(ids, jnp.argsort(order, axis=1)[:, :num_sampled], axis=1)


def _join(
    positives: Int[Array, " K"], others: Int[Array, " S"], is_free: Bool[Array, " S"]
) -> tuple[Int[Array, " S"], Bool[Array, " S"]]:
    """The positives, then the first ``others`` that are free, in as many slots as there are ``others``."""
    slots = others.shape[0]
    number = jnp.sum(positives < EMPTY)
    rank = number + jnp.cumsum(is_free) - 1
    ids = jnp.zeros(slots, jnp.int32).at[jnp.where(is_free, rank, slots)].set(others, mode="drop")
    ids = ids.at[jnp.where(positives < EMPTY, jnp.arange(positives.shape[0]), slots)].set(positives, mode="drop")
    return ids, jnp.arange(slots) < number + jnp.sum(is_free)
