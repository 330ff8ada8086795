"""Samplers made of samplers: ``mixture``, ``with_tail`` and ``every``."""

import itertools
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, State, no_update
from candax.checks import checked
from candax.samplers.common.found import EMPTY, is_found
from candax.samplers.common.schedules import schedule_of
from candax.samplers.common.shares import divisible


def _join(
    parts: Sequence[Sampler],
) -> tuple[Callable[..., State], Callable[..., State], Callable[..., State], Callable[[int], bool]]:
    """init, update, refresh and schedule of several samplers, whose states are a tuple."""

    def init(key: KeyArray, classes: Classes) -> State:
        keys = jax.random.split(key, len(parts))
        return tuple(part.init(keys[i], classes) for i, part in enumerate(parts))

    def update(states: State, key: KeyArray, query: Query, row_ids: Array, rows: Array) -> State:
        keys = jax.random.split(key, len(parts))
        return tuple(part.update(states[i], keys[i], query, row_ids, rows) for i, part in enumerate(parts))

    def refresh(states: State, key: KeyArray, classes: Classes) -> State:
        keys = jax.random.split(key, len(parts))
        return tuple(part.refresh(states[i], keys[i], classes) for i, part in enumerate(parts))

    def schedule(step: int) -> bool:
        return any(part.schedule(step) for part in parts)

    static = all(part.update is no_update for part in parts)
    return init, (no_update if static else update), refresh, schedule


def _law_over(parts: Sequence[Sampler]) -> Literal["draw", "index", "batch"]:
    """What the expectation of the one law runs over for all parts together: the widest of theirs."""
    over = {part.facts.law_over for part in parts}
    return "batch" if "batch" in over else "index" if "index" in over else "draw"


def _tells_labels(parts: Sequence[Sampler]) -> bool:
    """Whether one part follows the batch whose labels are the candidates of another: given the one, the other's are
    others than their counts say.
    """
    return any(
        one.facts.of_batch and other.facts.law_over == "batch" for one, other in itertools.permutations(parts, 2)
    )


@checked
@divisible()
def mixture(parts: Sequence[Sampler]) -> Sampler:
    """The candidates of all parts together; expected counts add: count(c) = sum_i count_i(c).

    Each part's counts are evaluated on the other parts' ids, too, so they must not depend on the draw. A class that two
    parts return stands in the set twice. A refresh is due when any part is due, and refreshes all parts.

    Counts add where the parts are drawn independently. ``in_batch`` beside a sampler whose one set follows the labels
    or embeddings of the same batch (``partial_fc``, ``midx``, ``grouped``) is biased, and ``facts.exact`` is False.

    Args:
        parts: at least one sampler, each with ``facts.draw_independent`` and without ``facts.counts_labels``, and all
            with the same number of groups.

    Returns:
        A ``Sampler``; its state is the tuple of the parts' states.

    Raises:
        ValueError: without parts, with a part whose counts depend on the draw, or when the parts' groups differ.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((4, 2)), None, jnp.array([4.0, 2.0, 1.0, 1.0]), jnp.int32(4))
        >>> sampler = cx.samplers.mixture([cx.samplers.uniform(2), cx.samplers.unigram(8, power=1.0)])
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((1, 2)), jnp.array([[1]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)
        >>> candidates.ids.shape, [round(float(x), 3) for x in jnp.exp(counts)[0]]
        ((1, 10), [4.5, 2.5, 1.5, 1.5])
    """
    parts = tuple(parts)
    if not parts:
        raise ValueError("expected at least one sampler in a mixture, got none.")
    for i, part in enumerate(parts):
        if not part.facts.draw_independent:
            raise ValueError(
                f"part {i} of the mixture has expected counts that depend on the draw, so it cannot be evaluated on "
                "the other parts' ids. Draw with replacement, or put it before a tail: with_tail(head, tail)."
            )
        if part.facts.counts_labels:
            raise ValueError(
                f"part {i} of the mixture counts labels that it need not draw, so its counts cannot be added to the "
                "others'. Put it before a tail: with_tail(head, tail)."
            )
    init, update, refresh, schedule = _join(parts)

    def sample(states: State, key: KeyArray, query: Query) -> Candidates:
        keys = jax.random.split(key, len(parts))
        drawn = tuple(part.sample(states[i], keys[i], query) for i, part in enumerate(parts))
        groups = [part.ids.shape[0] for part in drawn]
        if len(set(groups)) > 1:
            raise ValueError(f"expected the same number of groups in all parts of a mixture, got {groups}.")
        ids = jnp.concatenate([part.ids for part in drawn], axis=1)
        mask = jnp.concatenate([part.mask for part in drawn], axis=1)
        together = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw=drawn)
        counts = log_expected_count(states, together, ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, draw=drawn)

    def log_expected_count(
        states: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        total = jnp.full(ids.shape, -jnp.inf)
        for part, state, drawn in zip(parts, states, candidates.draw, strict=True):
            total = jnp.logaddexp(total, part.log_expected_count(state, drawn, ids, query))
        return total

    facts = Facts(
        covers_all=any(part.facts.covers_all for part in parts),
        draw_independent=True,
        with_replacement=len(parts) > 1 or parts[0].facts.with_replacement,
        exact=all(part.facts.exact for part in parts) and not _tells_labels(parts),
        law_over=_law_over(parts),
        of_batch=any(part.facts.of_batch for part in parts),
    )
    return Sampler(init, sample, log_expected_count, update, refresh, schedule, facts)


def _members(candidates: Candidates, ids: Int[Array, "G n"]) -> Bool[Array, "G n"]:
    """Which ids are in the candidate set of their group."""
    return is_found(jnp.sort(jnp.where(candidates.mask, candidates.ids, EMPTY), axis=1), ids)


def _spread(candidates: Candidates, groups: int) -> tuple[Int[Array, "G S"], Bool[Array, "G S"]]:
    """Ids and mask for more groups: the set of each group is repeated for the groups that it is cut into."""
    times = groups // max(candidates.ids.shape[0], 1)
    return jnp.repeat(candidates.ids, times, axis=0), jnp.repeat(candidates.mask, times, axis=0)


@checked
@divisible()
def with_tail(head: Sampler, tail: Sampler) -> Sampler:
    """A head that is summed explicitly, and a sampled tail for all other classes.

    Head members have expected count 1 and are masked in the tail; other classes have the tail's count. So for any head
    set H, sum_H u(c) + sum_{tail slots not in H} u(c) / count(c) is unbiased for Z = sum u(c), with variance
    (sum_{c not in H} u(c)^2 / q(c) - (sum_{c not in H} u(c))^2) / S for a tail that draws S times from q. A naive
    concatenation of the two sets counts the head's classes twice.

    The head's own counts are not used: however its set was chosen, the sum over that set is exact. The numbers of
    groups may differ if one divides the other: the sets of fewer groups are repeated.

    The set must not depend on the tail's draw: with ``in_batch`` as tail and a head whose one set follows the batch
    (``partial_fc``, ``grouped``), the tail lacks labels that its counts expect, and ``facts.exact`` is False.

    Args:
        head: a sampler without replacement, such as ``top_k``.
        tail: any sampler; if it misses classes, so does the union.

    Returns:
        A ``Sampler`` whose sets begin with the head's slots; its state is the pair of states. A refresh is due when
        either part is due, and refreshes both.

    Raises:
        ValueError: for a head that may return a class twice, or if neither number of groups divides the other.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.eye(4), None, None, jnp.int32(4))
        >>> sampler = cx.samplers.with_tail(cx.samplers.top_k(1), cx.samplers.uniform(2))
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.array([[0.1, 0.7, 0.3, 0.2]]), jnp.array([[3]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [0.5, 1.0, 0.5, 0.5]

    Source: the explicitly summed classes of Botev, Zheng and Barber, Complementary Sum Sampling (2017), equation 17.
    """
    if head.facts.with_replacement:
        raise ValueError(
            "expected a head without replacement, got one that may return a class twice, which would then be summed "
            "twice. Use top_k, or pass replacement=False to the head's factory."
        )
    init, update, refresh, schedule = _join((head, tail))

    def sample(states: State, key: KeyArray, query: Query) -> Candidates:
        key_head, key_tail = jax.random.split(key)
        chosen = head.sample(states[0], key_head, query)
        drawn = tail.sample(states[1], key_tail, query)
        sizes = chosen.ids.shape[0], drawn.ids.shape[0]
        groups = max(sizes) if min(sizes) else 0  # an empty batch has no set per example
        if groups and groups % min(sizes):
            raise ValueError(
                f"expected the groups of head and tail to divide each other, got {sizes[0]} and {sizes[1]} groups. "
                "Change num_groups of one of them."
            )
        head_ids, head_mask = _spread(chosen, groups)
        tail_ids, tail_mask = _spread(drawn, groups)
        chosen = Candidates(head_ids, jnp.zeros(head_ids.shape), head_mask)
        outside = ~_members(chosen, tail_ids)
        ids = jnp.concatenate([head_ids, tail_ids], axis=1)
        mask = jnp.concatenate([head_mask, tail_mask & outside], axis=1)
        union = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw=(chosen, drawn))
        counts = log_expected_count(states, union, ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, draw=(chosen, drawn))

    def log_expected_count(
        states: State, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        chosen, drawn = candidates.draw
        sets = drawn.ids.shape[0]
        of_tail = ids.reshape(sets, ids.size // max(sets, 1))
        counts = tail.log_expected_count(states[1], drawn, of_tail, query).reshape(ids.shape)
        return jnp.where(_members(chosen, ids), 0.0, counts)

    facts = Facts(
        covers_all=tail.facts.covers_all,
        draw_independent=False,
        with_replacement=tail.facts.with_replacement,
        exact=tail.facts.exact and not _tells_labels((head, tail)),
        law_over=_law_over((head, tail)),
        of_batch=head.facts.of_batch or tail.facts.of_batch,
    )
    return Sampler(init, sample, log_expected_count, update, refresh, schedule, facts)


@checked
@divisible()
def every(sampler: Sampler, schedule: int | Callable[[int], bool]) -> Sampler:
    """The same sampler with another schedule of refreshes, which the training loop obeys.

    Args:
        sampler: any sampler.
        schedule: n refreshes before steps n, 2n, 3n ... (not before step 0, for which the state was just built); or a
            function ``step -> bool``.

    Returns:
        A ``Sampler`` that differs in ``schedule`` only.

    Raises:
        ValueError: if ``schedule`` is a number but not a positive integer.

    Example:
        >>> import candax as cx
        >>> sampler = cx.samplers.every(cx.samplers.uniform(8), 3)
        >>> [step for step in range(10) if sampler.schedule(step)]
        [3, 6, 9]
    """
    return sampler._replace(schedule=schedule_of(schedule))
