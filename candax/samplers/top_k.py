"""Top-k: the exact best classes of every example, by scoring all of them."""

import jax.numpy as jnp
from jax import Array

from candax.base import Candidates, Classes, Facts, KeyArray, Query, Sampler, State, never, no_update
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_top_k
from candax.samplers.common.returned import log_count_of_returned
from candax.samplers.common.shares import divisible


@divisible("k")
def top_k(k: int, *, block_size: int = DEFAULT_BLOCK_SIZE) -> Sampler:
    """The k classes with the highest logits of each example, found exactly: the papers' TopK softmax.

    Candidates of example b: the k largest o_c = embeddings_b . vectors_c + biases_c over c < num_valid, one set an
    example (G = B, S = k), each with expected count 1. Retrieval is deterministic: classes outside the set have
    expected count 0, so nothing corrects for them and a loss sees a biased normalizer.

    The candidate set stands for the k best *and* the labels (a head scores true classes separately and marks hits), so
    ``log_expected_count`` is 0 for both and -inf for every other class.

    A step costs O(B * num_classes * dim): the one sampler whose cost grows with the number of classes, an oracle to
    compare approximate retrieval with. Memory stays at ``[B, block_size]``.

    Args:
        k: classes an example. Slots in excess of the number of valid classes are masked.
        block_size: the most classes scored at a time.

    Returns:
        A sampler without state; it reads ``embeddings``, ``labels`` and ``classes`` of the query.

    Raises:
        ValueError: if ``k`` or ``block_size`` is not positive.

    Example:
        >>> import jax
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
    if k < 1:
        raise ValueError(f"k is the number of classes retrieved for an example and must be positive, got {k}.")
    if block_size < 1:
        raise ValueError(
            f"block_size is the number of classes scored at a time and must be positive, got {block_size}."
        )

    def init(key: KeyArray, classes: Classes) -> State:
        del key, classes
        return ()

    def sample(state: State, key: KeyArray, query: Query) -> Candidates:
        del state, key
        scores, ids = streaming_top_k(query.embeddings, query.classes, k, block_size=block_size)
        return Candidates(ids, jnp.zeros(ids.shape, jnp.float32), scores > -jnp.inf)

    def log_expected_count(state: State, candidates: Candidates, ids: Array, query: Query) -> Array:
        del state
        return log_count_of_returned(candidates, ids, query)

    def refresh(state: State, key: KeyArray, classes: Classes) -> State:
        del key, classes
        return state

    facts = Facts(covers_all=False, draw_independent=False, with_replacement=False, exact=True, law_over="draw")
    return Sampler(init, sample, log_expected_count, no_update, refresh, never, facts)
