"""The best classes of groups of examples by one product over all codes, for groups that together want many classes."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.samplers.common.selection import GAP_BITS, best_places, gap, gaps, kth_smallest
from candax.samplers.ivf.bytes import Bytes, to_bytes
from candax.samplers.ivf.lists import Lists, list_of

# Classes compared with all examples at a time: their products stay in a CPU's cache.
_AT_ONCE = 1024
# About so many classes are used to estimate the scale of an example's logits.
_SAMPLE = 4096
# Logits below the best by more than so many times the median's distance from it count as that far below.
_LOW = 4.0


def pooled_bytes(
    codes: Bytes, lists: Lists, embeddings: Float[Array, "B dim"], groups: int, k: int, number: int
) -> tuple[Float[Array, "G number"], Int[Array, "G number"]]:
    """The ``number`` classes of each group that are the best for any of its examples, by their codes.

    Logits of different examples are compared by how far they are above the example's k-th largest, in units of their
    standard deviation: score(c) = max over the group's examples x of (logit(x, c) - t(x)) / s(x). Both t and s are
    estimated from a few thousand classes.

    Args:
        codes: of all classes.
        lists: where they are.
        embeddings: as the head scores them; groups are runs of them.
        groups: G.
        k: classes that each example wants.
        number: of each group, at most as many as there are places.

    Returns:
        Scores in any order, and ids; slots without a class have score -inf.
    """
    blocks, block, dim = codes.values.shape
    values, worth = to_bytes(embeddings)
    places, at_once = blocks * block, min(_AT_ONCE, blocks * block)
    flat, valid = codes.values.reshape(places, dim), _filled(lists).reshape(places)
    numbers = codes.numbers.swapaxes(1, 2).reshape(places, -1)
    if numbers.shape[1] > 1:
        valid &= numbers[:, 1] > -jnp.inf
    unit = 1.0 / jnp.where(worth > 0, worth, 1.0)

    def logits(rows: Array, numbers: Array) -> Array:
        found = jax.lax.dot_general(rows, values, (((1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
        found = found.astype(jnp.float32) * numbers[:, :1]
        return found + numbers[:, 1:] * unit if numbers.shape[1] > 1 else found

    stride = max(1, places // _SAMPLE)
    some = valid[::stride]
    least, spread = _scale(logits(flat[::stride], numbers[::stride]), some, k * jnp.sum(some) / jnp.sum(valid))

    def add(i: Array, scores: Array) -> Array:
        start = jnp.minimum(i * at_once, places - at_once)
        rows, of_rows = (jax.lax.dynamic_slice_in_dim(part, start, at_once) for part in (flat, numbers))
        above = (logits(rows, of_rows) - least) / spread
        best = jnp.max(above.reshape(at_once, groups, -1), axis=2)
        return jax.lax.dynamic_update_slice_in_dim(scores, best, start, axis=0)

    scores = jax.lax.fori_loop(0, -(-places // at_once), add, jnp.zeros((places, groups)))
    scores = jnp.where(valid, scores.T, -jnp.inf)
    place = best_places(scores, number)
    return jnp.take_along_axis(scores, place, axis=1), lists.ids.reshape(-1)[place]


def _filled(lists: Lists) -> Bool[Array, "blocks block"]:
    """Which places have a class."""
    blocks, block = lists.ids.shape
    number = jnp.arange(blocks, dtype=jnp.int32)
    which = list_of(lists.first_block, number)
    left = lists.sizes[which] - (number - lists.first_block[which]) * block
    left = jnp.where(number < lists.first_block[-1], left, 0)
    return jnp.arange(block) < left[:, None]


def _scale(
    logits: Float[Array, "n B"], valid: Bool[Array, " n"], rank: Float[Array, ""]
) -> tuple[Float[Array, " B"], Float[Array, " B"]]:
    """For each example its logit of this rank among valid classes, and its logits' standard deviation (never 0)."""
    logits = jnp.where(valid[:, None], logits, -jnp.inf)
    best, number, keys = jnp.max(logits, axis=0), jnp.sum(valid), jax.vmap(gaps, 1, 1)(logits)

    def below_best(rank: Int[Array, ""]) -> Float[Array, " B"]:
        return gap(jax.vmap(lambda keys: kth_smallest(keys[:, None], rank, GAP_BITS), 1)(keys))

    # A class that is never to be predicted, with a bias of -1e9, would be most of the deviation.
    logits = jnp.maximum(logits, best - _LOW * below_best((number + 1) // 2))
    share = valid / jnp.maximum(number, 1)
    mean = share @ jnp.where(valid[:, None], logits, 0.0)
    spread = jnp.sqrt(share @ jnp.where(valid[:, None], (logits - mean) ** 2, 0.0))
    return best - below_best(jnp.maximum(1, jnp.round(rank)).astype(jnp.int32)), jnp.where(spread > 0, spread, 1.0)
