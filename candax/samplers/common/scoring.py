"""Exact logits of a few classes, for samplers that rank what they find."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Classes, Query
from candax.cosines import as_scored, widened

# At most so many numbers of class rows are gathered at a time.
SCRATCH = 1 << 24


def logits_of(embedding: Float[Array, "*m dim"], ids: Int[Array, " n"], classes: Classes) -> Float[Array, "*m n"]:
    """Logits of one example, or of m, as the head scores them: with biases, and as cosines if the head is normalised.

    Args:
        embedding: of any length.
        ids: in range.
        classes: the output layer now.

    Returns:
        float32, or wider if the inputs are.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.eye(3), jnp.array([0.0, 0.5, 0.0]), None, jnp.int32(3))
        >>> logits_of(jnp.array([1.0, 2.0, 3.0]), jnp.array([2, 1]), classes).tolist()
        [3.0, 2.5]
    """
    embedding, vectors = (as_scored(part, classes.normalized) for part in (embedding, classes.vectors[ids]))
    logits = jnp.matmul(vectors, embedding.T, preferred_element_type=jnp.float32).T
    return logits if classes.biases is None else logits + widened(classes.biases[ids])


def best_of(query: Query, ids: Int[Array, "B n"], k: int) -> tuple[Float[Array, "B k"], Int[Array, "B k"]]:
    """The k of each example's ids with the largest logits, as a ``Retriever`` returns them.

    Args:
        query: embeddings and the output layer now.
        ids: distinct for each example; slots without one hold any number that is not a valid class.
        k: classes per example; slots in excess have score -inf and id 0.

    Returns:
        Scores in falling order, and ids.

    Example:
        >>> import jax.numpy as jnp, candax as cx
        >>> query = cx.Query(jnp.array([[1.0, 2.0, 3.0]]), jnp.array([[-1]]), cx.Classes(jnp.eye(3)))
        >>> best_of(query, jnp.array([[0, 1, 7]]), 3)[1].tolist()
        [[1, 0, 0]]
    """
    classes, slots = query.classes, min(k, ids.shape[1])

    def best(example: tuple[Float[Array, " dim"], Int[Array, " n"]]) -> tuple[Array, Array]:
        embedding, ids = example
        real = (ids >= 0) & (ids < classes.num_valid)
        at = jnp.where(real, ids, 0)
        scores, place = jax.lax.top_k(jnp.where(real, logits_of(embedding, at, classes), -jnp.inf), slots)
        return scores, jnp.where(scores > -jnp.inf, at[place], 0)

    rows = max(1, SCRATCH // (ids.shape[1] * classes.vectors.shape[1]))
    scores, found = jax.lax.map(best, (query.embeddings, ids), batch_size=min(rows, ids.shape[0]))
    short = ((0, 0), (0, k - slots))
    return jnp.pad(scores, short, constant_values=-jnp.inf), jnp.pad(found, short)
