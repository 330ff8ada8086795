"""The smallest of many integers and the largest scores: a threshold by bits, the places below it by counting bits.

``lax.top_k`` of long rows is slow on a CPU, and so is a scatter of one number per element. Here a row is only read:
once for each bit of its keys, to count how many lie below a threshold, and twice to pack comparisons into words.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int16, Int32, Integer, UInt32

WORD = 32
_RUN = 128
GAP_BITS = 15
# Up to so many scores are put in order by comparing all pairs.
_PAIRS = 512


def pack_bits(bits: Bool[Array, "*n width"]) -> UInt32[Array, "*n words"]:
    """Bit i of word w is ``bits[32 w + i]``; bits beyond the width are 0.

    Example:
        >>> import jax.numpy as jnp
        >>> pack_bits(jnp.array([True, False, True] + 29 * [False] + [True])).tolist()
        [5, 1]
    """
    short = -bits.shape[-1] % WORD
    padded = jnp.pad(bits, ((0, 0),) * (bits.ndim - 1) + ((0, short),))
    places = jnp.uint32(1) << jnp.arange(WORD, dtype=jnp.uint32)
    words = padded.reshape(*bits.shape[:-1], padded.shape[-1] // WORD, WORD)
    return jnp.sum(jnp.where(words, places, 0), axis=-1, dtype=jnp.uint32)


def select_bit(words: UInt32[Array, " n"], rank: Int[Array, " n"]) -> Int[Array, " n"]:
    """The place of the bit that has ``rank`` set bits below it; 31 where there is none.

    Example:
        >>> import jax.numpy as jnp
        >>> select_bit(jnp.array([0b1011], jnp.uint32), jnp.array([2])).tolist()
        [3]
    """
    place = jnp.zeros(words.shape, jnp.int32)
    for width in (16, 8, 4, 2, 1):
        low = words & jnp.uint32((1 << width) - 1)
        below = jax.lax.population_count(low).astype(jnp.int32)
        higher = rank >= below
        rank = jnp.where(higher, rank - below, rank)
        words = jnp.where(higher, words >> width, low)
        place = place + jnp.where(higher, width, 0)
    return place


def kth_smallest(keys: Integer[Array, "runs run"], num: Int[Array, ""] | int, num_bits: int) -> Integer[Array, ""]:
    """The ``num``-th smallest of all keys, which are below ``2**num_bits``: the largest t with fewer than num keys < t.

    O(num_bits) passes over the keys.
    """
    dtype = keys.dtype
    # A CPU does many sums down columns at a time if they have 16 bits.
    narrow = jnp.int16 if keys.shape[0] < 1 << 15 else jnp.int32

    def set_bit(i: Array, threshold: Array) -> Array:
        trial = threshold | (jnp.ones((), dtype) << (num_bits - 1 - i).astype(dtype))
        below = jnp.sum(jnp.sum(keys < trial, axis=0, dtype=narrow), dtype=jnp.int32)
        return jnp.where(below < num, trial, threshold)

    return jax.lax.fori_loop(0, num_bits, set_bit, jnp.zeros((), dtype))


def positions_of_set_bits(words: UInt32[Array, " words"], num: int) -> Int[Array, " num"]:
    """The places of the first ``num`` set bits, in rising order; there must be at least so many."""
    number = jax.lax.population_count(words).astype(jnp.int32)
    end = jnp.cumsum(number)
    # How many words end at or before each slot is the number of the word that the slot lies in.
    word = jnp.cumsum(jnp.zeros(num, jnp.int32).at[end].add(1, mode="drop"))
    word = jnp.minimum(word, words.shape[0] - 1)
    rank = jnp.arange(num, dtype=jnp.int32) - (end - number)[word]
    return word * WORD + select_bit(words[word], rank)


def _first_set_bits(words: UInt32[Array, " words"], num: Int[Array, ""]) -> UInt32[Array, " words"]:
    """Only the first ``num`` set bits stay."""
    number = jax.lax.population_count(words).astype(jnp.int32)
    left = jnp.clip(num - (jnp.cumsum(number) - number), 0, number)
    below = (jnp.uint32(1) << select_bit(words, left).astype(jnp.uint32)) - 1
    return jnp.where(left < number, words & below, words)


def smallest(keys: Integer[Array, " n"], num: int, num_bits: int) -> Int[Array, " num"]:
    """The places of the ``num`` smallest keys, in rising order of places; of equal keys the first ones are taken.

    Args:
        keys: of any integer type; at least 0 and below ``2**num_bits``.
        num: how many, at most n.
        num_bits: each costs a pass over the keys.

    Returns:
        int32 places.

    Raises:
        ValueError: if ``num`` exceeds the number of keys, or the keys' type has fewer bits.

    Example:
        >>> import jax.numpy as jnp
        >>> smallest(jnp.array([7, 3, 3, 0, 3], jnp.int16), num=3, num_bits=3).tolist()
        [1, 2, 3]
    """
    n = keys.shape[0]
    if num > n:
        raise ValueError(f"expected at most as many smallest keys as there are, got num={num} of {n}.")
    info = jnp.iinfo(keys.dtype)
    if (1 << num_bits) - 1 > int(info.max):
        raise ValueError(f"expected keys with room for {num_bits} bits, got {keys.dtype}.")
    if num == n:
        return jnp.arange(n, dtype=jnp.int32)
    padded = jnp.pad(keys, (0, -n % _RUN), constant_values=jnp.array(info.max, keys.dtype))
    kth = kth_smallest(padded.reshape(-1, _RUN), num, num_bits)
    below, equal = pack_bits(padded < kth), pack_bits(padded == kth)
    number = jnp.sum(jax.lax.population_count(below), dtype=jnp.int32)
    return positions_of_set_bits(below | _first_set_bits(equal, num - number), num)


def falling(scores: Float[Array, "*n"]) -> UInt32[Array, "*n"]:
    """Integers of 32 bits, at least 1, that rise as scores fall, for any score but NaN."""
    # -0 is 0.
    bits = jax.lax.bitcast_convert_type(jnp.where(scores == 0, 0.0, scores.astype(jnp.float32)), jnp.uint32)
    rising = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(1 << 31))
    return jnp.maximum(~rising, 1)


def gaps(estimates: Float[Array, "*n"]) -> Int16[Array, "*n"]:
    """How far each estimate is below the largest: integers of ``GAP_BITS`` bits, the largest where it is -inf.

    They are the first bits of the distance as a float32, so it is rounded by less than 1 part in 128, however far below
    all others some estimates are: a class with a bias of -1e9, which is never to be predicted, makes no others equal.
    """
    far = jnp.where(estimates > -jnp.inf, jnp.max(estimates) - estimates, jnp.inf)
    return (jax.lax.bitcast_convert_type(far.astype(jnp.float32), jnp.int32) >> (31 - GAP_BITS)).astype(jnp.int16)


def gap(key: Int16[Array, "*n"]) -> Float[Array, "*n"]:
    """The distance that ``gaps`` rounded down to this integer.

    Example:
        >>> import jax.numpy as jnp
        >>> gap(gaps(jnp.array([5.0, 4.5, -3.03, -1e9, -jnp.inf]))).tolist()
        [0.0, 0.5, 8.0, 998244352.0, inf]
    """
    return jax.lax.bitcast_convert_type(key.astype(jnp.int32) << (31 - GAP_BITS), jnp.float32)


def best_places(estimates: Float[Array, "B n"], number: int) -> Int32[Array, "B number"]:
    """The places of the largest estimates of each row, in rising order of places; those of -inf are last.

    Of those that ``gaps`` makes equal the first are taken.
    """
    return jax.vmap(lambda row: smallest(gaps(row), number, GAP_BITS))(estimates)


def best_first(
    scores: Float[Array, "B n"], ids: Int[Array, "B n"], k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k largest scores in falling order, of equal ones the first, and their ids: ``lax.top_k``, sooner on a CPU.

    Example:
        >>> import jax.numpy as jnp
        >>> best_first(jnp.array([[1.0, 3.0, 3.0]]), jnp.array([[7, 8, 9]]), 2)[1].tolist()
        [[8, 9]]
    """
    if k > _PAIRS:
        scores, place = jax.lax.top_k(scores, k)
        return scores, jnp.take_along_axis(ids, place, axis=1)
    if scores.shape[1] > _RUN:
        place = jax.vmap(lambda keys: smallest(keys, k, 32))(falling(scores))
        scores, ids = (jnp.take_along_axis(some, place, axis=1) for some in (scores, ids))
    number = scores.shape[1]
    # Sums down columns of 16 bits, of which a CPU does many at a time.
    place = jnp.arange(number, dtype=jnp.int16)
    mine, others = scores[:, None, :], scores[:, :, None]
    before = (others > mine) | ((others == mine) & (place[:, None] < place))
    rank = jnp.sum(before, axis=1, dtype=jnp.int16)
    at_rank = rank[:, :, None] == jnp.arange(k, dtype=jnp.int16)
    at = jnp.sum(jnp.where(at_rank, place[:, None], 0), axis=1, dtype=jnp.int16).astype(jnp.int32)
    return jnp.take_along_axis(scores, at, axis=1), jnp.take_along_axis(ids, at, axis=1)
