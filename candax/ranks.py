"""Ranks of true classes among all classes, block by block: what link prediction is measured by."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Classes
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, accumulator_dtype, block_logits, walk
from candax.cosines import as_scored


def streaming_ranks(
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    labels: Int[Array, " B"],
    known_rows: Int[Array, " P"],
    known_ids: Int[Array, " P"],
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Float[Array, " B"]:
    """The rank of each example's label among all classes but its other known answers.

    rank = 1 + #{c: o_c > o_label} + #{c: o_c = o_label} / 2, over valid c that are neither the label nor known: of
    equals, half count as better, so that a model that scores all alike gets the middle. Logits that are NaN count as
    better. Two passes over the classes, ``[B, block_size]`` logits at a time: the label's logit is read from the same
    product as its rivals', so that equal class vectors are exact ties.

    Args:
        embeddings: one row per example.
        classes: the output layer.
        labels: one valid class per example; the rank of -1 means nothing.
        known_rows: with ``known_ids``, pairs of an example and a class that is out of its ranking; rows >= B are
            fillers. The label itself may be among them.
        known_ids: see ``known_rows``.
        block_size: the most classes scored at a time.

    Returns:
        float32, 1 for the best.

    Example:
        >>> classes = Classes(jnp.array([[1.0], [5.0], [3.0], [3.0]]), None, None, jnp.array(4))
        >>> streaming_ranks(jnp.ones((1, 1)), classes, jnp.array([2]), jnp.array([0]), jnp.array([1])).tolist()
        [1.5]

    Source: filtered ranks are those of Bordes et al., Translating Embeddings for Modeling Multi-relational Data (2013).
    """
    dtype = accumulator_dtype(embeddings, classes)
    embeddings = as_scored(embeddings, classes.normalized)
    batch = embeddings.shape[0]

    def find_true(true: Array, block: Block) -> Array:
        at = labels - block.start
        size = block.fresh.shape[0]
        inside = (at >= 0) & (at < size)
        at = jnp.clip(at, 0, size - 1)
        own = jnp.take_along_axis(block_logits(embeddings, block), at[:, None], axis=1)[:, 0]
        return jnp.where(inside & block.fresh[at], own, true)

    true = walk(classes, dtype, find_true, jnp.full(batch, jnp.nan, dtype), block_size=block_size)[:, None]

    def count(twice: Array, block: Block) -> Array:
        logits = block_logits(embeddings, block)
        size = block.fresh.shape[0]
        rows = jnp.concatenate([jnp.arange(batch, dtype=known_rows.dtype), known_rows])
        columns = jnp.concatenate([labels, known_ids]) - block.start
        # Negative indices would count from the end: they go beyond it, where writes are dropped.
        columns = jnp.where((columns >= 0) & (columns < size), columns, size)
        out = jnp.zeros((batch, size), bool).at[rows, columns].set(True, mode="drop")
        rival = block.fresh & ~out
        better, equal = rival & ~(logits <= true), rival & (logits == true)
        return twice + jnp.sum(2 * better + equal, axis=1, dtype=jnp.int32)

    twice = walk(classes, dtype, count, jnp.zeros(batch, jnp.int32), block_size=block_size)
    return 1 + twice.astype(jnp.float32) / 2
