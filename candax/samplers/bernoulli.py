"""Bernoulli sampling: every class is included independently, with a probability of its own.

Tossing a coin for every class would cost O(num_classes) per draw. Instead class c arrives as a Poisson process of rate
-log(1 - b_c), and is included if it arrives at least once: the total number of arrivals is one Poisson number, each
arrival is a class drawn in proportion to the rates, and sorting removes repeats. Classes with b_c = 1 are always in.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, never, no_update, pytree
from candax.checks import check_positive, checked
from candax.runs import starts_of_runs
from candax.samplers.common.distinct import log_inclusion
from candax.samplers.common.groups import count_groups
from candax.samplers.common.schedules import built_anew
from candax.samplers.common.shares import divisible
from candax.samplers.common.thresholds import check_counts, draw_bins, integer_thresholds, log_bin_probability

# Probabilities of at least this count as 1: near 1 the rate grows without bound, but the buffer of arrivals is finite.
CERTAIN = 0.99
# So the rate of any other class is at most this many times its probability.
_RATE_OVER_PROBABILITY = -math.log1p(-CERTAIN) / CERTAIN


@pytree
class BernoulliState:
    """The tail's rates as integer thresholds, their sum, the law of the number of arrivals, and the certain classes.

    ``head``, the certain classes, is sorted and padded with num_classes.
    """

    thresholds: UInt32[Array, " num_classes"]
    total_rate: Float[Array, ""]
    arrivals: UInt32[Array, " buffer"]
    head: Int[Array, " num_slots"]


def probabilities_of_weights(weights: Float[Array, " n"], expected: float) -> Float[Array, " n"]:
    """Returns b = min(1, scale * weights), scaled so that b sums to ``expected`` (or all positive b are 1)."""

    def scale_given(certain: Bool[Array, " n"]) -> Float[Array, ""]:
        rest = jnp.sum(jnp.where(certain, 0.0, weights))
        room = jnp.maximum(expected - jnp.sum(certain).astype(weights.dtype), 0.0)
        return jnp.where(rest > 0, room / jnp.where(rest > 0, rest, 1.0), 0.0)

    def more(carry: tuple[Bool[Array, " n"], Array]) -> tuple[Bool[Array, " n"], Array]:
        certain, _ = carry
        now = certain | (weights * scale_given(certain) >= 1)
        return now, jnp.sum(now) > jnp.sum(certain)

    # Fixing at 1 what exceeds 1 leaves more for the rest and so raises their scale: the certain classes only grow.
    certain, _ = jax.lax.while_loop(lambda carry: carry[1], more, (jnp.zeros(weights.shape, bool), jnp.array(True)))
    return jnp.where(certain, 1.0, weights * scale_given(certain))


def poisson_thresholds(rate: Float[Array, ""], size: int) -> UInt32[Array, " size"]:
    """Integer thresholds of the Poisson distribution over 0 ... size - 1.

    Log probabilities are summed from the mode outwards: summed from 0, they would be large numbers near the mode.
    """
    n = jnp.arange(size, dtype=rate.dtype)
    mode = jnp.floor(rate)
    up = jnp.cumsum(jnp.where(n > mode, jnp.log(rate / jnp.maximum(n, 1)), 0.0))
    down = jnp.cumsum(jnp.where(n < mode, jnp.log((n + 1) / rate), 0.0)[::-1])[::-1]
    weights = jnp.exp(up + down)
    # A positive weight always gets a unit. What is too unlikely for 32 bits gets weight 0, so a long tail adds nothing.
    return integer_thresholds(jnp.where(weights > 1e-12, weights, 0.0))


@checked
@divisible("expected", "num_slots")
def bernoulli(
    expected: float | None = None,
    *,
    power: float = 0.54,
    smoothing: float = 0.0,
    probability: Callable[[Classes], Float[Array, " num_classes"]] | None = None,
    num_slots: int | None = None,
    num_groups: int | None = 1,
) -> Sampler:
    """Includes each class c independently with probability b_c; its log expected count is log b_c (Horvitz-Thompson).

    Three ways to give b, with the frequency f_c = (counts_c + smoothing) / sum (counts + smoothing):

    - ``expected``: b_c = min(1, scale * f_c^power), the scale such that b sums to ``expected`` candidates;
    - neither ``expected`` nor ``probability``: b_c = f_c^power (the paper's f^0.54);
    - ``probability``: a function from the classes to b.

    A b_c of 0.99 and above counts as 1; classes of count 0 have b = 0 unless smoothed. Where b would need more arrivals
    than there is room for (b sums to more than about ``num_slots``), the rates of all classes with b_c < 1 are scaled
    down. The reported b_c is the one drawn, from 32-bit integers: b_c = 1 - exp(-total_rate * units_c / sum units).

    If n > num_slots classes are included, a uniformly random subset of num_slots of them is returned. Given the n
    classes, each stays with probability num_slots / n, so every expected count of that draw is b_c * num_slots / n, and
    the one law holds whatever ``num_slots`` is.

    A draw costs O(A log num_classes), A the arrival buffer: about 5 times ``expected`` (without it, ``num_slots``), at
    least ``num_slots``.

    Args:
        expected: the number of candidates per group, on average.
        power: to which the counts are raised; 0.54 is the paper's.
        smoothing: added to every count.
        probability: ``Classes -> float32[num_classes]`` in [0, 1]; rows >= num_valid are ignored.
        num_slots: S, the size of the padded output. Default: ``expected`` plus six standard deviations plus 8.
        num_groups: G, groups per batch (1: one shared set); None: one set per example.

    Returns:
        A ``Sampler``; its state is 4 bytes per class. Slots beyond the included classes are masked. Counts depend on
        the draw only where more classes were included than there are slots.

    Raises:
        ValueError: for numbers out of range, for two ways to say b at once, for no ``num_slots`` where there is no
            default; in ``init`` for missing or invalid counts or probabilities.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((4, 2)), None, jnp.array([6.0, 2.0, 1.0, 1.0]), jnp.int32(4))
        >>> sampler = cx.samplers.bernoulli(2.0, power=1.0)
        >>> state = sampler.init(jax.random.key(0), classes)
        >>> query = cx.Query(jnp.zeros((1, 2)), jnp.array([[1]]), classes)
        >>> candidates = sampler.sample(state, jax.random.key(1), query)
        >>> counts = sampler.log_expected_count(state, candidates, jnp.arange(4)[None], query)
        >>> [round(float(x), 3) for x in jnp.exp(counts)[0]]
        [1.0, 0.5, 0.25, 0.25]

    Source: Botev, Zheng and Barber, Complementary Sum Sampling for Likelihood Approximation in Large Scale
        Classification (2017), section 3 (Bernoulli sampling).
    """
    if probability is not None and expected is not None:
        raise ValueError("expected one of expected=... and probability=..., got both. Leave one out.")
    if expected is not None and not expected > 0:
        raise ValueError(f"expected the number of candidates to be finite and > 0, got expected={expected!r}.")
    if not power > 0:
        raise ValueError(f"expected a finite power > 0, got {power!r}.")
    if not smoothing >= 0:
        raise ValueError(f"expected a finite smoothing >= 0, got {smoothing!r}.")
    check_positive("num_slots", num_slots, optional=True)
    check_positive("num_groups", num_groups, optional=True)
    if num_slots is not None:
        slots = num_slots
    elif expected is not None:
        slots = math.ceil(expected + 6 * math.sqrt(expected)) + 8
    else:
        raise ValueError("num_slots has a default only with expected=...: pass num_slots=... (the most candidates).")
    largest_rate = _RATE_OVER_PROBABILITY * (slots if expected is None else expected)
    # Eight standard deviations: more arrivals than the buffer holds are less likely than one unit of 2^-32.
    buffer = max(slots, math.ceil(largest_rate + 8 * math.sqrt(largest_rate)) + 16)

    def wanted(classes: Classes) -> Float[Array, " num_classes"]:
        valid = jnp.arange(classes.num_classes) < classes.num_valid
        if probability is not None:
            told = jnp.asarray(probability(classes), jnp.float32)
            if told.shape != valid.shape:
                raise ValueError(
                    f"expected a probability for each of {len(valid)} rows from the function given to bernoulli, got "
                    f"the shape {told.shape}."
                )
            b = jnp.where(valid, told, 0.0)
            if not isinstance(b, jax.core.Tracer) and not bool(jnp.all((b >= 0) & (b <= 1))):
                raise ValueError(f"expected probabilities in [0, 1], got {b}. Check the function given to bernoulli.")
            return b
        counts = check_counts(classes.counts, "bernoulli", may_be_zero=smoothing > 0, num_valid=classes.num_valid)
        counts = jnp.where(valid, counts, 0.0)
        total = jnp.sum(counts) if classes.total_count is None else classes.total_count
        number = classes.num_valid if classes.total_valid is None else classes.total_valid
        counts = jnp.where(valid, counts + smoothing, 0.0)
        if expected is None:
            return (counts / (total + smoothing * number)) ** power
        weights = jnp.maximum((counts / jnp.max(counts)) ** power, jnp.finfo(jnp.float32).tiny)
        return probabilities_of_weights(jnp.where(counts > 0, weights, 0.0), expected)

    def init(key: KeyArray, classes: Classes) -> BernoulliState:
        del key
        b = wanted(classes)
        head = jnp.nonzero(b >= CERTAIN, size=slots, fill_value=classes.num_classes)[0].astype(jnp.int32)
        # Certain classes beyond the slots go to the tail with a probability of 0.99.
        tail = jnp.minimum(b, CERTAIN).at[head].set(0.0, mode="drop")
        rates = -jnp.log1p(-tail)
        total = jnp.minimum(jnp.sum(rates), largest_rate)
        rates = rates.at[0].add(jnp.where(total > 0, 0.0, 1.0))  # an empty tail needs a table too; it is never used
        return BernoulliState(integer_thresholds(rates), total, poisson_thresholds(total, buffer + 1), head)

    def draw_set(state: BernoulliState, key: KeyArray, num_classes: int) -> tuple[Array, Array, Array]:
        key_number, key_ids, key_order = jax.random.split(key, 3)
        number = draw_bins(state.arrivals, key_number, ())
        ids = draw_bins(state.thresholds, key_ids, (buffer,))
        ids = jnp.sort(jnp.where(jnp.arange(buffer) < number, ids, num_classes))
        ids = jnp.concatenate([state.head, jnp.where(starts_of_runs(ids), ids, num_classes)])
        real = ids < num_classes
        included = jnp.sum(real)
        order = jnp.where(real, jax.random.bits(key_order, ids.shape) | 1, 0)
        kept = jax.lax.top_k(order, slots)[1]
        log_kept = jnp.log(slots / jnp.maximum(included, slots).astype(jnp.float32))
        return jnp.where(real[kept], ids[kept], 0), real[kept], log_kept

    def sample(state: BernoulliState, key: KeyArray, query: Query) -> Candidates:
        keys = jax.random.split(key, count_groups(num_groups, query))
        ids, mask, log_kept = jax.vmap(lambda key: draw_set(state, key, query.classes.num_classes))(keys)
        drawn = Candidates(ids, jnp.zeros(ids.shape, jnp.float32), mask, draw=log_kept)
        counts = log_expected_count(state, drawn, ids, query)
        return Candidates(ids, jnp.where(mask, counts, 0.0), mask, draw=log_kept)

    def log_expected_count(
        state: BernoulliState, candidates: Candidates, ids: Int[Array, "G n"], query: Query
    ) -> Float[Array, "G n"]:
        del query
        place = jnp.minimum(jnp.searchsorted(state.head, ids), slots - 1)
        log_b = log_inclusion(log_bin_probability(state.thresholds, ids), state.total_rate)
        return jnp.where(state.head[place] == ids, 0.0, log_b) + candidates.draw[:, None]

    facts = Facts(covers_all=probability is None and smoothing > 0, draw_independent=False, with_replacement=False)
    return Sampler(init, sample, log_expected_count, no_update, built_anew(init), never, facts)
