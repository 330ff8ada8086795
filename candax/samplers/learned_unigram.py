"""Unigram frequencies learned from the stream of labels, for when nobody has counted them.

A memory of labels is kept in sorted order: a uniformly random slot of it is a draw from the frequencies it holds, and
binary search tells how often a class occurs in it. So the reported counts are exact, however old the memory is. (A
table of occurrences by class would be read by the draw and written by the update, so the compiled step would copy it.)
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, never, pytree
from candax.checks import check_positive, checked
from candax.runs import starts_of_runs
from candax.samplers.common.found import EMPTY
from candax.samplers.common.groups import count_groups
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import random_below

# Probabilities of the uniform part are multiples of this, so that float32 holds them exactly.
_SHARE_UNITS = 1 << 20
# Without decay the memory stands for at most so many labels, then forgets at that rate: the counter stays in int32.
_LONGEST = 1 << 30


@pytree
class LabelMemory:
    """Labels in rising order (unused slots last, as ``EMPTY``), how many were seen, and the number of classes."""

    slots: Int[Array, " memory"]
    seen: Int[Array, ""]
    num_valid: Int[Array, ""]


def _last_of_each(slots: Int[Array, " n"]) -> Bool[Array, " n"]:
    """True at the last occurrence of each value: of two labels for one slot the later one stays."""
    n = slots.shape[0]
    by_slot, position = jax.lax.sort((slots, jnp.arange(n)), num_keys=1, is_stable=True)
    last = starts_of_runs(by_slot[::-1])[::-1]
    return jnp.zeros(n, bool).at[position].set(last, unique_indices=True)


@checked
@divisible("num_sampled")
def learned_unigram(
    num_sampled: int,
    *,
    memory: int = 1 << 15,
    decay: float | None = None,
    uniform_share: float = 0.1,
    num_groups: int | None = 1,
) -> Sampler:
    """Classes in proportion to how often they stand in a memory of the labels seen so far, and some uniformly.

    q(c) = share / num_valid + (1 - share) * (slots that hold c) / (slots in use), expected count S q(c). Before the
    first ``update`` the memory is empty and all draws are uniform. Counts are those of the memory as it is at this
    step: a memory that is out of date makes worse candidates, never wrong counts.

    Each ``update`` offers the batch's labels to the memory one after the other. The t-th label of the stream goes to
    slot t while there is room, then to a random one of min(t, horizon) slots, if the memory has that slot (reservoir
    sampling). Without decay every label seen is equally likely to be remembered; with it the horizon is
    1 / (1 - decay), and a remembered label survives each later one with probability ``decay``.

    A draw costs O(log memory), an update one sort of the memory, whatever the number of classes.

    Args:
        num_sampled: S, candidates per group.
        memory: labels remembered: the smallest frequency it can tell from 0 is about 1 / memory.
        decay: per label (not per step), at least 1 - 1/memory: weight of a label after k later ones is decay^k. None:
            never forget (until 2^30 labels, then as with a decay of 1 - 2^-30).
        uniform_share: the share of draws that are uniform over all valid classes, so that none is left out. Rounded to
            a multiple of 2^-20.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.

    Returns:
        A ``Sampler``; its state is 4 bytes per slot of memory. ``refresh`` keeps what was learned.

    Raises:
        ValueError: for numbers out of range.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((4, 2)), None, None, jnp.int32(4))
        >>> sampler = cx.samplers.learned_unigram(num_sampled=8, uniform_share=0.5)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((2, 2)), jnp.array([[1, 3], [1, -1]]), classes)
        >>> state = sampler.update(state, jax.random.key(1), query, jnp.array([1, 3]), jnp.zeros((2, 2)))
        >>> candidates = sampler.sample(state, jax.random.key(2), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [1.0, 3.667, 1.0, 2.333]

    Source: Vitter, Random Sampling with a Reservoir (1985), algorithm R; with decay: Aggarwal, On Biased Reservoir
        Sampling in the Presence of Stream Evolution (2006).
    """
    check_positive("num_sampled", num_sampled)
    check_positive("memory", memory)
    check_positive("num_groups", num_groups, optional=True)
    if not 0 < uniform_share <= 1:
        raise ValueError(f"expected 0 < uniform_share <= 1, got {uniform_share!r}: without it new classes never come.")
    if memory > _LONGEST:
        raise ValueError(f"expected memory of at most 2^30 labels, got {memory}.")
    if decay is not None and not 1 - 1 / memory <= decay < 1:
        raise ValueError(
            f"expected 1 - 1/memory = {1 - 1 / memory} <= decay < 1, got {decay!r}. "
            "Use a smaller memory to forget sooner."
        )
    horizon = _LONGEST if decay is None else min(_LONGEST, max(memory, round(1 / (1 - decay))))
    share_units = max(1, round(uniform_share * _SHARE_UNITS))

    def init(key: KeyArray, classes: Classes) -> LabelMemory:
        del key
        return LabelMemory(jnp.full(memory, EMPTY, jnp.int32), jnp.int32(0), classes.num_valid.astype(jnp.int32))

    def sample(state: LabelMemory, key: KeyArray, query: Query) -> Candidates:
        shape = (count_groups(num_groups, query), num_sampled)
        key_part, key_slot, key_class = jax.random.split(key, 3)
        known = jnp.minimum(state.seen, memory)
        from_all = (random_below(key_part, shape, jnp.uint32(_SHARE_UNITS)) < share_units) | (known == 0)
        remembered = state.slots[random_below(key_slot, shape, known).astype(jnp.int32)]
        anywhere = random_below(key_class, shape, state.num_valid).astype(jnp.int32)
        ids = jnp.where(from_all, anywhere, remembered)
        drawn = Candidates(ids, jnp.zeros(shape), jnp.ones(shape, bool))
        return Candidates(ids, log_expected_count(state, drawn, ids, query), drawn.mask)

    def log_expected_count(
        state: LabelMemory, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del candidates, query
        known = jnp.minimum(state.seen, memory).astype(jnp.float32)
        share = jnp.where(known > 0, share_units / _SHARE_UNITS, 1.0)
        first, end = (jnp.searchsorted(state.slots, ids, side=side) for side in ("left", "right"))
        frequency = (end - first).astype(jnp.float32) / jnp.maximum(known, 1.0)
        q = share / state.num_valid.astype(jnp.float32) + (1 - share) * frequency
        return jnp.where(ids < state.num_valid, jnp.log(num_sampled * q), -jnp.inf)

    def update(state: LabelMemory, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> LabelMemory:
        del row_ids, rows
        labels = query.labels.reshape(-1)
        real = (labels >= 0) & (labels < state.num_valid)
        number = state.seen + jnp.cumsum(real)  # of this label in the stream, from 1
        slot = random_below(key, labels.shape, jnp.minimum(number, horizon)).astype(jnp.int32)
        slot = jnp.where(number <= memory, number - 1, slot)
        slot = jnp.where(real & (slot < memory), slot, memory)
        slots = state.slots.at[jnp.where(_last_of_each(slot), slot, memory)].set(labels, mode="drop")
        # Sorting between batches changes nothing: slots are chosen at random, and unused ones stay behind the used.
        seen = jnp.minimum(state.seen + jnp.sum(real), _LONGEST).astype(jnp.int32)
        return LabelMemory(jnp.sort(slots), seen, state.num_valid)

    def refresh(state: LabelMemory, key: KeyArray, classes: Classes) -> LabelMemory:
        del key
        # Where there are fewer classes than before, copies of other labels take the place of theirs.
        left, place = jnp.sum(state.slots < classes.num_valid, dtype=jnp.int32), jnp.arange(memory)
        kept = state.slots[jnp.where(place < left, place, place % jnp.maximum(left, 1))]
        used = (place < state.seen) & (left > 0)
        seen = jnp.where(left > 0, state.seen, 0)
        return LabelMemory(jnp.sort(jnp.where(used, kept, EMPTY)), seen, classes.num_valid.astype(jnp.int32))

    facts = Facts(covers_all=True, draw_independent=True, with_replacement=True, alike=True)
    return Sampler(init, sample, log_expected_count, update, refresh, never, facts)
