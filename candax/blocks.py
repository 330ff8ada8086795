"""Work over all classes in blocks of rows, so that no ``[B, num_classes]`` array is ever held.

``walk`` is the one loop; the exact top-k and the log normalizer are two things to do with a block's logits.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from candax.base import Classes, KeyArray
from candax.cosines import as_scored, wide

Carry = TypeVar("Carry")
Transform: TypeAlias = Callable[[Array], Array]
"""Of logits, element by element."""

DEFAULT_BLOCK_SIZE = 8192
_ROW_MULTIPLE = 128
_RUN = 32


class Block(NamedTuple):
    """Consecutive rows of the output layer.

    Attributes:
        start: id of the first row.
        vectors: the rows, of length 1 where the head is normalised. Those that are not ``valid`` are zero, so that NaN
            in a padding row cannot spread.
        biases: the same for the biases, in the dtype of the logits; zeros where the layer has none.
        valid: the row is a class (its id is below ``num_valid``).
        fresh: valid, and not part of an earlier block.
    """

    start: Int[Array, ""]
    vectors: Float[Array, "block dim"]
    biases: Float[Array, " block"]
    valid: Bool[Array, " block"]
    fresh: Bool[Array, " block"]


def block_starts(num_classes: int, block_size: int) -> tuple[int, int]:
    """Splits ``num_classes`` rows into blocks of one size, as equal as that allows.

    Block i starts at ``min(i * size, num_classes - size)``: the last one moves back instead of running over the end,
    because filling up the table would copy it.

    Args:
        num_classes: rows of the table.
        block_size: the most rows a block may have.

    Returns:
        The number of blocks and their size.

    Raises:
        ValueError: if ``block_size`` is not positive.

    Example:
        >>> block_starts(100_000, 8192)
        (13, 7808)
        >>> block_starts(10, 8192)
        (1, 10)
    """
    if block_size < 1:
        raise ValueError(
            f"block_size is the number of classes scored at a time and must be positive, got {block_size}."
        )
    num_blocks = max(-(-num_classes // block_size), 1)
    size = -(-num_classes // num_blocks)
    size = -(-size // _ROW_MULTIPLE) * _ROW_MULTIPLE
    return num_blocks, min(size, block_size, num_classes)


def accumulator_dtype(embeddings: Array, classes: Classes) -> jnp.dtype:
    """The dtype of logits: float32, or wider if the inputs are."""
    return np.promote_types(wide(embeddings.dtype), wide(classes.vectors.dtype))


def block_logits(embeddings: Float[Array, "B dim"], block: Block) -> Float[Array, "B block"]:
    """Logits of one block, ``embeddings @ vectors.T + biases``; zero for rows that are not valid."""
    return jnp.matmul(embeddings, block.vectors.T, preferred_element_type=block.biases.dtype) + block.biases[None]


def walk(
    classes: Classes, dtype: jnp.dtype, visit: Callable[[Carry, Block], Carry], carry: Carry, *, block_size: int
) -> Carry:
    """Calls ``carry = visit(carry, block)`` for every block of ``classes``, in the order of the ids.

    Args:
        classes: the output layer.
        dtype: of the logits.
        visit: what to do with a block. Every valid class is ``fresh`` in exactly one block.
        carry: the start value.
        block_size: the most classes a block may have.

    Returns:
        The last carry.
    """
    num_classes = classes.num_classes
    num_blocks, size = block_starts(num_classes, block_size)

    def step(i: Array, carry: Carry) -> Carry:
        first_unseen = i * size
        start = jnp.minimum(first_unseen, num_classes - size).astype(jnp.int32)
        ids = start + lax.iota(jnp.int32, size)
        valid = ids < classes.num_valid
        fresh = valid & (ids >= first_unseen)
        vectors = lax.dynamic_slice_in_dim(classes.vectors, start, size)
        biases = jnp.zeros(size, dtype)
        if classes.biases is not None:
            biases = lax.dynamic_slice_in_dim(classes.biases, start, size).astype(dtype)
        vectors = as_scored(jnp.where(valid[:, None], vectors, 0), classes.normalized)
        block = Block(start, vectors, jnp.where(valid, biases, 0), valid=valid, fresh=fresh)
        return visit(carry, block)

    return lax.fori_loop(0, num_blocks, step, carry)


class _TopK(NamedTuple):
    scores: Float[Array, "B k"]
    ids: Int[Array, "B k"]


class _LogSum(NamedTuple):
    largest: Float[Array, " B"]
    total: Float[Array, " B"]  # sum over the classes seen of exp(logit - largest)


def _block_top_k(logits: Float[Array, "B block"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """``lax.top_k`` of long rows for a small k: the k best lie in the k runs of columns with the highest maxima.

    ``lax.top_k`` alone can take longer than computing the logits. Runs are put back into their order before the second
    selection, so that ties still go to the lower column.
    """
    batch, size = logits.shape
    if size < 4 * _RUN * k:
        scores, columns = lax.top_k(logits, k)
        return scores, columns
    padded = jnp.pad(logits, ((0, 0), (0, -size % _RUN)), constant_values=-jnp.inf)
    runs = padded.reshape(batch, padded.shape[1] // _RUN, _RUN)
    _, chosen = lax.top_k(runs.max(axis=-1), k)
    chosen = jnp.sort(chosen, axis=-1)
    scores, positions = lax.top_k(jnp.take_along_axis(runs, chosen[:, :, None], axis=1).reshape(batch, k * _RUN), k)
    return scores, jnp.take_along_axis(chosen, positions // _RUN, axis=1) * _RUN + positions % _RUN


def _merge_top_k(best: _TopK, logits: Float[Array, "B block"], start: Int[Array, ""]) -> _TopK:
    """The k best of ``best`` and of a later block; of equal scores the earlier, hence lower, id stays."""
    k = best.scores.shape[1]

    def merge(count: int) -> _TopK:
        scores, columns = _block_top_k(logits, count)
        scores, kept = lax.top_k(jnp.concatenate([best.scores, scores], axis=1), k)
        ids = jnp.concatenate([best.ids, columns.astype(jnp.int32) + start], axis=1)
        return _TopK(scores, jnp.take_along_axis(ids, kept, axis=1))

    few = k // 4
    if few < 4 or logits.shape[1] <= k:
        return merge(min(k, logits.shape[1]))
    # Once many classes have been seen, few of the next block beat the k-th best, and few are quick to select.
    better = jnp.sum(logits > best.scores[:, -1:], axis=1).max(initial=0)
    return lax.cond(better <= few, lambda: merge(few), lambda: merge(k))


def _add_exponentials(seen: _LogSum, logits: Float[Array, "B block"]) -> _LogSum:
    largest = jnp.maximum(seen.largest, logits.max(axis=1))
    shift = jnp.where(largest == -jnp.inf, 0, largest)  # -inf - -inf is NaN
    total = seen.total * jnp.exp(seen.largest - shift) + jnp.exp(logits - shift[:, None]).sum(axis=1)
    return _LogSum(largest, total)


def streaming_evaluate(
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    k: int,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    transform: Transform | None = None,
    exclude: Int[Array, "B E"] | None = None,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Float[Array, " B"]]:
    """The exact k best classes and the log normalizer of every example, in one pass over the classes.

    With o_c = embeddings . vectors_c + biases_c (of a normalised head: the cosine): the k largest o_c over
    c < num_valid, their ids, and log sum_{c < num_valid} exp(o_c). Holds ``[B, block_size]`` logits at a time.

    Args:
        embeddings: one row per example.
        classes: the output layer; vectors narrower than float32 are multiplied with float32 accumulation.
        k: how many classes per example; 0 for the normalizer alone.
        block_size: the most classes scored at a time.
        transform: of the logits, element by element (a soft cap, say); None: none.
        exclude: ids that are not among the k best of their example, padded with -1; they count in the normalizer.

    Returns:
        Scores in falling order, their ids (int32; of equal scores the lower id comes first), and the log normalizer.
        Where k exceeds the number of valid classes the excess slots have score -inf and id 0.

    Raises:
        ValueError: if k is negative or ``block_size`` is not positive.

    Example:
        >>> classes = Classes(jnp.eye(3), jnp.array([0.0, 0.0, 1.0]), None, jnp.array(3))
        >>> scores, ids, log_normalizer = streaming_evaluate(jnp.array([[2.0, 0.0, 0.0]]), classes, 2)
        >>> ids.tolist(), round(float(log_normalizer[0]), 4)
        ([[0, 2]], 2.4076)
    """
    if k < 0:
        raise ValueError(f"k is the number of classes to return and cannot be negative, got {k}.")
    dtype = accumulator_dtype(embeddings, classes)
    embeddings = as_scored(embeddings, classes.normalized)
    batch = embeddings.shape[0]

    def visit(carry: tuple[_TopK, _LogSum], block: Block) -> tuple[_TopK, _LogSum]:
        best, seen = carry
        logits = block_logits(embeddings, block)
        logits = jnp.where(block.fresh[None], logits if transform is None else transform(logits), -jnp.inf)
        allowed = logits if exclude is None else _without(logits, exclude - block.start)
        return _merge_top_k(best, allowed, block.start) if k else best, _add_exponentials(seen, logits)

    best = _TopK(jnp.full((batch, k), -jnp.inf, dtype), jnp.zeros((batch, k), jnp.int32))
    seen = _LogSum(jnp.full(batch, -jnp.inf, dtype), jnp.zeros(batch, dtype))
    best, seen = walk(classes, dtype, visit, (best, seen), block_size=block_size)
    return best.scores, best.ids, seen.largest + jnp.log(seen.total)


def _without(logits: Float[Array, "B block"], columns: Int[Array, "B E"]) -> Float[Array, "B block"]:
    """-inf in these columns of each row; columns out of range are ignored."""
    batch, size = logits.shape
    inside = (columns >= 0) & (columns < size)
    return logits.at[jnp.arange(batch)[:, None], jnp.where(inside, columns, size)].set(-jnp.inf, mode="drop")


def streaming_sample(
    key: KeyArray,
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    transform: Transform | None = None,
) -> Int[Array, " B"]:
    """A class for every example, drawn from its softmax: the largest logit plus Gumbel noise, block by block.

    Args:
        key: of this draw.
        embeddings: one row per example.
        classes: the output layer.
        block_size: the most classes scored at a time.
        transform: of the logits, element by element.

    Returns:
        int32 ids.

    Example:
        >>> import jax
        >>> classes = Classes(jnp.eye(3), jnp.array([0.0, -50.0, -50.0]), None, jnp.array(3))
        >>> streaming_sample(jax.random.key(0), jnp.zeros((4, 3)), classes).tolist()
        [0, 0, 0, 0]
    """
    dtype = accumulator_dtype(embeddings, classes)
    embeddings = as_scored(embeddings, classes.normalized)

    def visit(best: _TopK, block: Block) -> _TopK:
        logits = block_logits(embeddings, block)
        logits = logits if transform is None else transform(logits)
        # The usual noise of float32 never exceeds 16: of a million classes or more, the rare ones would be too rare.
        noise = jax.random.gumbel(jax.random.fold_in(key, block.start), logits.shape, dtype, mode="high")
        return _merge_top_k(best, jnp.where(block.fresh[None], logits + noise, -jnp.inf), block.start)

    batch = embeddings.shape[0]
    best = _TopK(jnp.full((batch, 1), -jnp.inf, dtype), jnp.zeros((batch, 1), jnp.int32))
    return walk(classes, dtype, visit, best, block_size=block_size).ids[:, 0]


def streaming_top_k(
    embeddings: Float[Array, "B dim"], classes: Classes, k: int, *, block_size: int = DEFAULT_BLOCK_SIZE
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The exact k best classes of every example: the first two results of ``streaming_evaluate``.

    Example:
        >>> classes = Classes(jnp.eye(3), None, None, jnp.array(3))
        >>> scores, ids = streaming_top_k(jnp.array([[1.0, 3.0, 2.0]]), classes, 2)
        >>> ids.tolist(), scores.tolist()
        ([[1, 2]], [[3.0, 2.0]])
    """
    scores, ids, _ = streaming_evaluate(embeddings, classes, k, block_size=block_size)
    return scores, ids


def streaming_log_normalizer(
    embeddings: Float[Array, "B dim"], classes: Classes, *, block_size: int = DEFAULT_BLOCK_SIZE
) -> Float[Array, " B"]:
    """The log normalizer of every example, log sum_{c < num_valid} exp(o_c): the last of ``streaming_evaluate``.

    It is meant to be read, not differentiated: reverse mode would store every block's logits. ``full_softmax`` has a
    gradient of its own.

    Example:
        >>> classes = Classes(jnp.zeros((8, 2)), None, None, jnp.array(8))
        >>> round(float(streaming_log_normalizer(jnp.ones((1, 2)), classes)[0]), 4)  # log 8
        2.0794
    """
    return streaming_evaluate(embeddings, classes, 0, block_size=block_size)[2]
