"""Top-k: the exact best classes of every example, by scoring all of them."""

from jax import Array

from candax.base import Classes, KeyArray, Query, Retriever, Sampler, State, no_follow
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_top_k
from candax.checks import check_positive, checked
from candax.samplers.common.shares import divisible
from candax.samplers.retrieved import retrieved


@checked
@divisible()
def exact_index(*, block_size: int = DEFAULT_BLOCK_SIZE) -> Retriever:
    """The retriever of ``top_k``, without any index: every search scores all classes, ``block_size`` at a time.

    Raises ValueError if ``block_size`` is not positive.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> scores, ids = exact_index().find((), jnp.array([[1.0, 3.0, 2.0]]), cx.Classes(jnp.eye(3)), 2)
        >>> scores.tolist(), ids.tolist()
        ([[3.0, 2.0]], [[1, 2]])
    """
    check_positive("block_size", block_size)

    def build(key: KeyArray, classes: Classes) -> State:
        del key, classes
        return ()

    def search(state: State, query: Query, k: int) -> tuple[Array, Array]:
        del state
        return streaming_top_k(query.embeddings, query.classes, k, block_size=block_size)

    def refresh(state: State, key: KeyArray, classes: Classes) -> State:
        del key, classes
        return state

    return Retriever(build, search, no_follow, refresh, "exact")


@checked
def top_k(k: int, *, block_size: int = DEFAULT_BLOCK_SIZE) -> Sampler:
    """The k classes with the highest logits of each example, found exactly: the papers' TopK softmax.

    Candidates of example b: the k largest o_c = embeddings_b . vectors_c + biases_c over c < num_valid, one set per
    example (G = B, S = k), each with expected count 1; see ``retrieved`` for what that means.

    A draw costs O(B * num_classes * dim), which grows with the number of classes: this is an oracle to compare
    approximate retrieval with. Memory stays at ``[B, block_size]``.

    Args:
        k: classes per example. Slots in excess of the number of valid classes are masked.
        block_size: the most classes scored at a time.

    Returns:
        A sampler without state; it reads ``embeddings``, ``labels`` and ``classes`` of the query.

    Raises:
        ValueError: if ``k`` or ``block_size`` is not positive.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> from candax.base import Classes, Query
        >>> classes = Classes(jnp.eye(4), None, None, jnp.array(4))
        >>> query = Query(jnp.array([[0.1, 0.4, 0.3, 0.2]]), jnp.array([[3]]), classes)
        >>> sampler = top_k(2)
        >>> candidates = sampler.sample((), jax.random.key(0), query)
        >>> candidates.ids.tolist()
        [[1, 2]]
        >>> sampler.log_expected_count((), candidates, jnp.array([[3, 0]]), query).tolist()
        [[0.0, -inf]]

    Source: the baseline "TopK Softmax" (k highest activations, including the true classes) of Daghaghi et al., "A Tale
    of Two Efficient and Informative Negative Sampling Distributions" (2021), section 3.2.
    """
    return retrieved(exact_index(block_size=block_size), k)
