"""Codes of one byte per coordinate: classes are ranked by products of whole numbers, the best ones scored exactly.

What a CPU does quickly decides the form: codes of a block are rows that lie next to each other, so that a query reads
whole pages; queries of the same list follow each other and find its rows in the cache; products of a few queries at a
time, summed in 32 bits; the best by a threshold found bit by bit, and put in order by comparing all pairs, as sorts and
``lax.top_k`` of so many take longer than the products.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8, Int32

from candax.base import Classes, pytree
from candax.cosines import as_scored, widened
from candax.samplers.common.selection import best_first, best_places
from candax.samplers.ivf.lists import Lists, Visit

_MOST = 127
# Queries whose codes or rows are read at a time on a CPU: they stay in its cache, and their number feeds several cores.
_TILE = 4
# Queries that read few codes go together, up to so many queries and codes.
_LARGE_TILE = 16
_TOGETHER = 1 << 13
# Places that a query reads at a time, for the same reason.
_PLACES = 1 << 12
# More queries than this are put in order by sorting, fewer by comparing all pairs.
_SORTED = 1 << 11
# So many queries are searched at a time that what is read together holds about this many numbers.
_SCRATCH = 1 << 24


@pytree
class Bytes:
    """Codes of one byte per coordinate.

    With v the class vector as the head scores it and s = max |v_i| / 127, the code is v / s rounded.

    Attributes:
        values: of the class at each place.
        numbers: s, and the class's bias where there are biases.
    """

    values: Int8[Array, "blocks block dim"]
    numbers: Float[Array, "blocks numbers block"]


def no_bytes(blocks: int, block: int, dim: int, has_biases: bool) -> Bytes:
    """Codes of no class yet."""
    return Bytes(jnp.zeros((blocks, block, dim), jnp.int8), jnp.zeros((blocks, 1 + has_biases, block), jnp.float32))


def to_bytes(vectors: Float[Array, "n dim"]) -> tuple[Int8[Array, "n dim"], Float[Array, " n"]]:
    """Rows as whole numbers from -127 to 127, and what 1 is worth in each.

    Example:
        >>> import jax.numpy as jnp
        >>> values, worth = to_bytes(jnp.array([[0.5, -1.27]]))
        >>> values.tolist(), [round(float(x), 4) for x in worth]
        ([[50, -127]], [0.01])
    """
    vectors = vectors.astype(jnp.float32)
    worth = jnp.max(jnp.abs(vectors), axis=1) / _MOST
    scaled = vectors / jnp.where(worth > 0, worth, 1.0)[:, None]
    return jnp.clip(jnp.rint(scaled), -_MOST, _MOST).astype(jnp.int8), worth


def write_bytes(
    codes: Bytes, place: Int[Array, " n"], vectors: Float[Array, "n dim"], biases: Float[Array, " n"] | None
) -> Bytes:
    """Writes codes of vectors at their places, dropping those beyond all places. ``biases`` None: the old ones stay."""
    block = codes.values.shape[1]
    number, inside = place // block, place % block
    values, worth = to_bytes(vectors)
    numbers = codes.numbers.at[number, 0, inside].set(worth, mode="drop")
    if biases is not None:
        numbers = numbers.at[number, 1, inside].set(biases.astype(jnp.float32), mode="drop")
    return Bytes(codes.values.at[number, inside].set(values, mode="drop"), numbers)


def search_bytes(
    codes: Bytes,
    lists: Lists,
    seen: Visit,
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    kept: int,
    k: int,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Takes from the blocks that each query reads the ``kept`` best classes by code, and of these the k best by score.

    Args:
        codes: of all classes.
        lists: where they are.
        seen: what is read.
        embeddings: as the head scores them.
        classes: the output layer now: what is scored.
        kept: how many are scored exactly; at least k.
        k: at most as many as are read.

    Returns:
        Scores in falling order, and ids; slots without a class have score -inf and id 0.
    """

    def score(embeddings: Array, ids: Array, estimates: Array) -> tuple[Array, Array]:
        logits = jnp.where(estimates > -jnp.inf, _exact(embeddings, ids, classes), -jnp.inf)
        scores, best = best_first(logits, ids, k)
        return scores, jnp.where(scores > -jnp.inf, best, 0)

    return _by_estimates(codes, lists, seen, embeddings, kept, score, kept * embeddings.shape[1])


def shortlist_bytes(
    codes: Bytes, lists: Lists, seen: Visit, embeddings: Float[Array, "B dim"], k: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k best by codes alone: estimates and ids, in any order; slots without a class have the estimate -inf."""

    def score(embeddings: Array, ids: Array, estimates: Array) -> tuple[Array, Array]:
        return estimates * to_bytes(embeddings)[1][:, None], ids

    return _by_estimates(codes, lists, seen, embeddings, k, score, 0)


def _by_estimates(
    codes: Bytes,
    lists: Lists,
    seen: Visit,
    embeddings: Float[Array, "B dim"],
    kept: int,
    score: Callable[[Array, Array, Array], tuple[Array, Array]],
    scratch: int,
) -> tuple[Array, Array]:
    """What ``score`` makes of each query, the ids that seem best and their estimates; -inf where there is no class."""
    number, reads = seen.blocks.shape
    block = codes.values.shape[1]
    # Neighbours in this order read the same lists.
    order, back = _in_order(seen.blocks[:, 0])
    at_once = max(1, min(number, _SCRATCH // (reads * block + scratch)))
    at_once = -(-at_once // _TILE) * _TILE
    parts = -(-number // at_once)

    def cut(array: Array) -> Array:
        padded = jnp.pad(array[order], ((0, parts * at_once - number), *((0, 0),) * (array.ndim - 1)))
        return padded.reshape(parts, at_once, *array.shape[1:])

    def some(queries: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        embeddings, blocks, filled = queries
        valid = jnp.arange(block) < filled[:, :, None]
        estimates = jnp.where(valid, estimate(codes, embeddings, blocks), -jnp.inf).reshape(at_once, -1)
        place = best_places(estimates, kept)
        ids = lists.ids[jnp.take_along_axis(blocks, place // block, axis=1), place % block]
        return score(embeddings, ids, jnp.take_along_axis(estimates, place, axis=1))

    queries = (cut(embeddings), cut(seen.blocks), cut(seen.filled))
    if parts == 1:
        first, second = some((queries[0][0], queries[1][0], queries[2][0]))
    else:
        first, second = (jax.lax.collapse(found, 0, 2) for found in jax.lax.map(some, queries))
    return first[back], second[back]


def estimate(codes: Bytes, embeddings: Float[Array, "B dim"], blocks: Int[Array, "B R"]) -> Float[Array, "B R block"]:
    """Logits of the classes in these blocks as estimated by codes, in units of what 1 is worth in the query's code."""
    values, worth = to_bytes(embeddings)

    def products(queries: tuple[Array, Array]) -> Array:
        values, blocks = queries
        rows = codes.values[blocks].reshape(values.shape[0], -1, values.shape[1])
        return jnp.einsum("qpd,qd->qp", rows, values, preferred_element_type=jnp.int32)

    number, reads, block = *blocks.shape, codes.values.shape[1]
    # Long reads go in runs of equal length, which stay in the cache too.
    runs = -(-reads * block // _PLACES)
    run = -(-reads // runs)
    cut = jnp.pad(blocks, ((0, 0), (0, runs * run - reads))).reshape(number * runs, run)
    tile = _LARGE_TILE if _LARGE_TILE * run * block <= _TOGETHER else _TILE
    found = _by_tiles(products, (jnp.repeat(values, runs, axis=0), cut), tile)
    found = found.reshape(number, runs * run, block)[:, :reads]
    numbers = codes.numbers[blocks]
    estimates = found.astype(jnp.float32) * numbers[:, :, 0]
    if numbers.shape[2] > 1:
        estimates += numbers[:, :, 1] / jnp.where(worth > 0, worth, 1.0)[:, None, None]
    return estimates


def _exact(embeddings: Float[Array, "B dim"], ids: Int[Array, "B n"], classes: Classes) -> Float[Array, "B n"]:
    """The logits of each query's own ids."""

    def of_some(queries: tuple[Array, Array]) -> Array:
        embeddings, ids = queries
        rows = as_scored(classes.vectors[ids], classes.normalized)
        return jnp.einsum("qnd,qd->qn", rows, embeddings, preferred_element_type=jnp.float32)

    logits = _by_tiles(of_some, (embeddings, ids))
    return logits if classes.biases is None else logits + widened(classes.biases[ids])


def _by_tiles(function, arrays, tile=_TILE):  # type: ignore[no-untyped-def]
    """Applies a function of rows; on a CPU, to a few rows at a time: a power of two, at most ``tile``."""
    tile = math.gcd(arrays[0].shape[0], tile)

    def tiled(*arrays: Array) -> Array:
        cut = tuple(array.reshape(-1, tile, *array.shape[1:]) for array in arrays)
        found = jax.lax.map(function, cut)
        return found.reshape(-1, *found.shape[2:])

    return jax.lax.platform_dependent(*arrays, cpu=tiled, default=lambda *arrays: function(arrays))


def _in_order(keys: Int[Array, " n"]) -> tuple[Int32[Array, " n"], Int32[Array, " n"]]:
    """The order in which the keys rise, and the place of each in it."""
    number = keys.shape[0]
    place = jnp.arange(number, dtype=jnp.int32)
    if number > _SORTED:
        order = jnp.argsort(keys).astype(jnp.int32)
        return order, jnp.zeros(number, jnp.int32).at[order].set(place, unique_indices=True)
    before = (keys < keys[:, None]) | ((keys == keys[:, None]) & (place < place[:, None]))
    rank = jnp.sum(before, axis=1, dtype=jnp.int32)
    return jnp.sum(jnp.where(rank == place[:, None], place, 0), axis=1, dtype=jnp.int32), rank
