"""Importance resampling: many cheap candidates are scored without a gradient, and a few are kept."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, KeyArray, Query, Sampler, State
from candax.checks import check_positive, checked
from candax.samplers.common.scoring import SCRATCH, logits_of
from candax.samplers.common.shares import divisible


@checked
@divisible("num_kept")
def resampled(sampler: Sampler, num_kept: int, *, scale: float = 1.0) -> Sampler:
    """Keeps ``num_kept`` of a sampler's candidates per example, drawn in proportion to exp(logit) / expected count.

    The pool of S candidates with expected counts n_s is scored once, without a gradient; W = sum_s exp(o_s) / n_s
    estimates the softmax normaliser. K slots of the pool are drawn with replacement, slot s with probability
    exp(o_s) / (n_s W), by one stratified draw. So gradients pass through K rows per example only, which are nearly as
    good as K draws from the softmax itself if the pool is large.

    **Expected counts.** A class c has count K exp(o_c) / W: the expected sum of 1 / count over the slots that hold c is
    then the pool's own sum of 1 / n_s, so the one law holds for what is kept wherever it holds for the pool. The counts
    depend on the draw (through W), and classes that the pool cannot hold have count 0.

    A draw costs O(S * dim) per example. In float32, chances of slots with less than about 1e-6 of W are not exact.

    Args:
        sampler: draws the pool: any sampler, with shared sets or one per example (``retrieved`` too).
        num_kept: K, slots per example.
        scale: what a margin multiplies the logits o by, where these are cosines.

    Returns:
        A ``Sampler`` with one set per example, and the state, updates, refreshes and schedule of the given one.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> sampler = cx.samplers.resampled(cx.samplers.uniform(64), 4)
        >>> classes = cx.Classes(jnp.eye(8))
        >>> query = cx.Query(30 * classes.vectors[:2], jnp.array([[5], [5]]), classes)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> sampler.sample(state, jax.random.key(1), query).ids.tolist()
        [[0, 0, 0, 0], [1, 1, 1, 1]]

    Source: Rubin, The SIR algorithm (1988); the stratified draw is Kitagawa, Monte Carlo filter and smoother (1996).
    """
    check_positive("num_kept", num_kept)
    if not scale > 0:
        raise ValueError(f"expected scale > 0, got {scale!r}.")

    def scored(query: Query, ids: Int[Array, "G n"]) -> Float[Array, "B n"]:
        batch_size, dim = query.embeddings.shape
        if not batch_size:
            return jnp.zeros((0, ids.shape[1]))
        of_group = query.embeddings.reshape(ids.shape[0], -1, dim)
        # Some groups at a time: the gathered rows of all would be [G, n, dim].
        at_once = min(ids.shape[0], max(1, SCRATCH // (ids.shape[1] * dim)))
        each = jax.lax.map(lambda one: logits_of(one[0], one[1], query.classes), (of_group, ids), batch_size=at_once)
        return scale * each.reshape(batch_size, -1)

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        key_pool, key_keep = jax.random.split(key)
        pool = sampler.sample(state, key_pool, query)
        batch_size, groups = query.embeddings.shape[0], pool.ids.shape[0]
        ids, mask, counts = (
            jnp.repeat(part, batch_size // max(groups, 1), axis=0)
            for part in (pool.ids, pool.mask, pool.log_expected_count)
        )
        log_weights = jnp.where(mask, scored(query, jnp.where(pool.mask, pool.ids, 0)) - counts, -jnp.inf)
        log_total = jax.nn.logsumexp(log_weights, axis=1)
        some = log_total > -jnp.inf
        shares = jnp.cumsum(jnp.exp(log_weights - jnp.where(some, log_total, 0.0)[:, None]), axis=1)
        points = (jnp.arange(num_kept, dtype=float) + jax.random.uniform(key_keep, (batch_size, num_kept))) / num_kept
        # Slots without weight are passed over: the first slot whose running sum exceeds a point has some.
        place = jax.vmap(lambda shares, points: jnp.searchsorted(shares, points, side="right"))(
            shares, points * shares[:, -1:]
        )
        last = jnp.argmax(shares, axis=1)[:, None]  # of several equal sums the first: a slot with weight
        place = jnp.minimum(place, last)
        kept = jnp.take_along_axis(ids, place, axis=1)
        # Rounding may land on a slot without weight nevertheless.
        valid = jnp.take_along_axis(log_weights, place, axis=1) > -jnp.inf
        drawn = Candidates(jnp.where(valid, kept, 0), jnp.zeros(kept.shape, jnp.float32), valid, (pool, log_total))
        counts = log_expected_count(state, drawn, drawn.ids, query)
        return Candidates(drawn.ids, jnp.where(valid, counts, 0.0), valid, drawn.draw)

    def log_expected_count(
        state: State, candidates: Candidates, ids: Int[Array, "B n"], query: Query
    ) -> Float[Array, "B n"]:
        pool, log_total = candidates.draw
        of_group = ids.reshape(pool.ids.shape[0], ids.size // max(pool.ids.shape[0], 1))
        of_pool = sampler.log_expected_count(state, pool, of_group, query).reshape(ids.shape)
        possible = (of_pool > -jnp.inf) & (log_total > -jnp.inf)[:, None]
        logits = scored(query, jnp.where(possible, ids, 0))
        return jnp.where(possible, jnp.log(num_kept) + logits - log_total[:, None], -jnp.inf)

    facts = dataclasses.replace(sampler.facts, draw_independent=False, with_replacement=True, alike=False)
    return sampler._replace(sample=sample, log_expected_count=log_expected_count, facts=facts)
