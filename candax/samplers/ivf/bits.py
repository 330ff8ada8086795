"""Search by codes of one bit per coordinate: a query's blocks are read together, its best classes scored exactly."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from candax.base import Classes
from candax.samplers.common.scoring import logits_of
from candax.samplers.common.selection import smallest
from candax.samplers.ivf.codes import Asked, Coder
from candax.samplers.ivf.lists import Lists, Visit

# So many queries are searched at a time that the codes and rows read together hold about this many numbers.
_SCRATCH = 1 << 22


def search_bits(
    coder: Coder,
    codes: UInt32[Array, "blocks record block"],
    lists: Lists,
    seen: Visit,
    asked: Asked,
    similar: Float[Array, "B R"],
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    width: int,
    kept: int,
    k: int,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """Takes from the blocks that each query reads the ``kept`` best classes by code, and of these the k best by score.

    Args:
        coder: made the codes.
        codes: of all classes.
        lists: where they are.
        seen: what is read.
        asked: the queries as bit planes.
        similar: inner product of each query with the centre of each block's list.
        embeddings: of any length.
        classes: the output layer now: what is scored.
        width: of the keys.
        kept: how many are scored exactly; at least k.
        k: at most as many as are read.

    Returns:
        Scores in falling order, and ids; slots without a class have score -inf and id 0.
    """
    block, dim = lists.ids.shape[1], embeddings.shape[1]
    scratch = seen.blocks.shape[1] * block * (codes.shape[1] + 2) + kept * dim
    at_once = max(1, min(_SCRATCH // scratch, embeddings.shape[0]))

    def one(query: tuple[Array, Asked, Visit, Array]) -> tuple[Array, Array]:
        embedding, asked, seen, similar = query
        valid = jnp.arange(block) < seen.filled[:, None]
        of_blocks = codes[seen.blocks]
        order, bits = coder.sort_keys(of_blocks, valid, asked.planes, asked.step, similar, width)
        position = smallest(order.reshape(-1), kept, bits)
        read, inside = position // block, position % block
        real = inside < seen.filled[read]
        ids = jnp.where(real, lists.ids[seen.blocks[read], inside], 0)
        logits = jnp.where(real, logits_of(embedding, ids, classes), -jnp.inf)
        scores, best = jax.lax.top_k(logits, k)
        return scores, jnp.where(scores > -jnp.inf, ids[best], 0)

    return jax.lax.map(one, (embeddings, asked, seen, similar), batch_size=at_once)
