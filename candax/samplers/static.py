"""Samplers whose distribution does not depend on the input: uniform, log-uniform, unigram.

A ``Distribution`` says how to draw one class and with what probability; ``static_sampler`` turns it into a sampler with
or without replacement and with any number of groups. Nothing here has a cost that grows with the number of classes,
except building the tables once, in ``init``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, never, no_update, pytree
from candax.checks import check_positive, checked
from candax.samplers.common.distinct import RACE_FACTOR, Distinct, log_inclusion, race, stream
from candax.samplers.common.groups import count_groups
from candax.samplers.common.schedules import built_anew
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import (
    check_counts,
    draw_bins,
    integer_thresholds,
    log_bin_probability,
    random_below,
)


class Distribution(NamedTuple):
    """A categorical distribution over class ids, as pure functions over its tables.

    Attributes:
        init: ``(classes) -> table``.
        draw: ``(table, key, shape) -> int32 ids`` independent draws.
        log_prob: ``(table, ids) -> float32``: log of the probability with which ``draw`` returns each id.
        support: ``(table, n) -> (int32[n], int32[])``: the first n classes that can be drawn, and how many there are.
        equal: all classes of the support have the same probability.
        covers_all: the support is all valid classes.
    """

    init: Callable[[Classes], Any]
    draw: Callable[[Any, KeyArray, tuple[int, ...]], Int[Array, "..."]]
    log_prob: Callable[[Any, Int[Array, "..."]], Float[Array, "..."]]
    support: Callable[[Any, int], tuple[Int[Array, " n"], Int[Array, ""]]]
    equal: bool
    covers_all: bool


@pytree
class StaticState:
    """Tables of the distribution; without replacement also the head of its support and the support's size."""

    table: Any
    support: Int[Array, " n"] | None
    support_size: Int[Array, ""] | None


def static_sampler(
    distribution: Distribution, *, num_sampled: int, num_groups: int | None, replacement: bool
) -> Sampler:
    """A sampler that draws ``num_sampled`` classes per group from one distribution, whatever the input.

    With replacement the expected count of class c is S q(c), known before the draw. Without, the candidates are the
    first S distinct classes of a stream of draws, and the count is 1 - exp(-q(c) tau), where tau is the time at which
    the next distinct class arrives (see ``distinct``); if the classes are equally likely it is simply S / n.
    """
    check_positive("num_sampled", num_sampled)
    check_positive("num_groups", num_groups, optional=True)

    def init(key: KeyArray, classes: Classes) -> StaticState:
        del key
        table = distribution.init(classes)
        if replacement:
            return StaticState(table, None, None)
        return StaticState(table, *distribution.support(table, min(RACE_FACTOR * num_sampled, classes.num_classes)))

    def draw_distinct(state: StaticState, key: KeyArray, num_classes: int) -> Distinct:
        assert state.support is not None
        assert state.support_size is not None
        support, size = state.support, state.support_size

        def over_support(key: KeyArray) -> Distinct:
            log_prob = distribution.log_prob(state.table, support)
            return race(key, support, jnp.where(jnp.arange(support.shape[0]) < size, log_prob, -jnp.inf), num_sampled)

        few = size <= support.shape[0]

        def over_stream(key: KeyArray) -> Distinct:
            return stream(key, lambda key, shape: distribution.draw(state.table, key, shape), num_sampled, ~few)

        if support.shape[0] == num_classes:
            return over_support(key)
        return jax.lax.cond(few, over_support, over_stream, key)

    def sample(state: StaticState, key: KeyArray, query: Query) -> Candidates:
        groups = count_groups(num_groups, query)
        draw: Any = ()
        if replacement:
            ids = distribution.draw(state.table, key, (groups, num_sampled))
            mask = jnp.ones(ids.shape, bool)
        else:
            keys = jax.random.split(key, groups)
            ids, mask, draw = jax.vmap(lambda key: draw_distinct(state, key, query.classes.num_classes))(keys)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw)
        counts = log_expected_count(state, drawn, ids, query)
        # Where no class has a count, which a compiled init cannot refuse, nothing is drawn.
        mask = mask & (counts > -jnp.inf)
        return Candidates(jnp.where(mask, ids, 0), jnp.where(mask, counts, 0.0), mask, draw)

    def log_expected_count(
        state: StaticState, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        log_prob = distribution.log_prob(state.table, ids)
        if replacement:
            return log_prob + jnp.log(num_sampled)
        if distribution.equal:
            return jnp.where(log_prob > -jnp.inf, jnp.minimum(log_prob + jnp.log(num_sampled), 0.0), -jnp.inf)
        return log_inclusion(log_prob, candidates.draw[:, None])

    facts = Facts(
        covers_all=distribution.covers_all,
        draw_independent=replacement or distribution.equal,
        with_replacement=replacement,
        alike=replacement,
    )
    return Sampler(init, sample, log_expected_count, no_update, built_anew(init), never, facts)


@checked
@divisible("num_sampled")
def uniform(num_sampled: int, *, num_groups: int | None = 1, replacement: bool = True) -> Sampler:
    """Every valid class with the same probability, q(c) = 1 / num_valid.

    Args:
        num_sampled: S, candidates per group.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.
        replacement: whether a class can stand in a set twice. Without, counts are S / num_valid (1 if S is larger, and
            the slots beyond the classes are masked).

    Returns:
        A ``Sampler``; its state is one integer.

    Raises:
        ValueError: if a number is not positive, or when a batch cannot be cut into ``num_groups`` groups.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((50, 4)), None, None, jnp.int32(50))
        >>> sampler = cx.samplers.uniform(num_sampled=8)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((2, 4)), jnp.array([[3], [7]]), classes)
        >>> sampler.sample(state, jax.random.key(1), query).ids.shape
        (1, 8)
    """

    def log_prob(n: Int[Array, ""], ids: Int[Array, "..."]) -> Float[Array, "..."]:
        return jnp.where(ids < n, -jnp.log(n.astype(jnp.float32)), -jnp.inf)

    distribution = Distribution(
        init=lambda classes: classes.num_valid.astype(jnp.int32),
        draw=lambda n, key, shape: random_below(key, shape, n).astype(jnp.int32),
        log_prob=log_prob,
        support=lambda n, size: (jnp.minimum(jnp.arange(size, dtype=jnp.int32), n - 1), n),
        equal=True,
        covers_all=True,
    )
    return static_sampler(distribution, num_sampled=num_sampled, num_groups=num_groups, replacement=replacement)


@checked
@divisible("num_sampled")
def unigram(
    num_sampled: int,
    *,
    power: float = 0.75,
    smoothing: float = 0.0,
    num_groups: int | None = 1,
    replacement: bool = True,
) -> Sampler:
    """Classes in proportion to a power of their label frequency, q(c) ~ (counts(c) + smoothing)^power.

    Classes of count 0 are never drawn without smoothing, and their expected count is 0 (-inf in logs): a softmax
    trained with such a sampler never pushes them down. ``smoothing=1`` draws them as if seen once more.
    Probabilities are rounded to multiples of about 2^-32, and the reported counts are those of the rounded ones.

    Args:
        num_sampled: S, candidates per group.
        power: 0.75 as in word2vec; 1 draws by frequency, 0 uniformly over the classes seen.
        smoothing: added to every count before the power.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.
        replacement: whether a class can stand in a set twice.

    Returns:
        A ``Sampler``; its state is 4 bytes per class.

    Raises:
        ValueError: for numbers out of range; in ``init`` when the classes have no counts or invalid ones.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((3, 4)), None, jnp.array([16.0, 1.0, 0.0]), jnp.int32(3))
        >>> sampler = cx.samplers.unigram(num_sampled=9, power=0.75)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((1, 4)), jnp.array([[1]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(3)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [8.0, 1.0, 0.0]

    Source: Mikolov et al., Distributed Representations of Words and Phrases and their Compositionality (2013),
        section 2.2.
    """
    if not power >= 0:
        raise ValueError(f"expected a finite power >= 0, got {power!r}.")
    if not smoothing >= 0:
        raise ValueError(f"expected a finite smoothing >= 0, got {smoothing!r}.")

    def init(classes: Classes) -> Array:
        counts = smoothing + check_counts(
            classes.counts, "unigram", may_be_zero=smoothing > 0, num_valid=classes.num_valid
        )
        counts = jnp.where(jnp.arange(counts.shape[0]) < classes.num_valid, counts, 0.0)
        # Relative to the largest, so that no power overflows; what underflows was seen and keeps a chance.
        weights = jnp.maximum((counts / jnp.max(counts)) ** power, jnp.finfo(jnp.float32).tiny)
        return integer_thresholds(jnp.where(counts > 0, weights, 0.0))

    def support(thresholds: Array, size: int) -> tuple[Array, Array]:
        drawn = jnp.diff(thresholds, prepend=jnp.uint32(0)) > 0
        return jnp.nonzero(drawn, size=size, fill_value=0)[0].astype(jnp.int32), jnp.sum(drawn, dtype=jnp.int32)

    distribution = Distribution(
        init=init,
        draw=draw_bins,
        log_prob=log_bin_probability,
        support=support,
        equal=False,
        covers_all=smoothing > 0,
    )
    return static_sampler(distribution, num_sampled=num_sampled, num_groups=num_groups, replacement=replacement)
