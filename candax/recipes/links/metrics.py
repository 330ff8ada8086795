"""Exact evaluation of link prediction: filtered ranks over all entities, in both directions."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from candax.base import Classes
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.data import KnownAnswers, QuestionBatch
from candax.ranks import streaming_ranks

_SMALLEST_BUCKET = 1024

_ranks = jax.jit(streaming_ranks, static_argnames="block_size")


def evaluate_links(
    embed_fn: Callable[[Any], Float[Array, "B dim"]],
    classes: Classes,
    batches: Iterable[QuestionBatch],
    known: KnownAnswers,
    num_relations: int,
    *,
    ks: tuple[int, ...] = (1, 3, 10),
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> dict[str, float]:
    """Mean reciprocal rank and hits@k of the answers, filtered.

    mrr = mean of 1 / rank, hits@k = share of ranks <= k; ranks as in ``candax.ranks.streaming_ranks``, every other
    known answer out of the ranking. Never holds ``[questions, num_entities]`` numbers.

    Args:
        embed_fn: the encoder, from a batch to embeddings. Let it be jitted already.
        classes: the entities as the output layer.
        batches: questions with their answers; fillers do not count.
        known: all answers that are known, those of the test part among them.
        num_relations: of the graph: from there on a relation asks for heads.
        ks: which k to report.
        block_size: the most entities scored at a time.

    Returns:
        ``mrr``, ``mrr_tails``, ``mrr_heads`` (of the questions for tails and for heads alone), ``hits_at_k`` for every
        k, ``median_rank`` and ``num_questions``.

    Raises:
        ValueError: without a question.

    Example:
        >>> import jax.numpy as jnp
        >>> from candax.data import KnownAnswers, Triple, graph_of, questions_in_order, questions_of
        >>> small = graph_of("tiny", [Triple("cat", "is", "animal"), Triple("dog", "is", "animal")], test_share=0.0)
        >>> asked = questions_in_order(questions_of(small.train, 1), 4)
        >>> classes = Classes(jnp.eye(3), None, None, jnp.array(3))  # an entity is taken for its own answer
        >>> metrics = evaluate_links(lambda batch: jnp.eye(3)[batch.entities], classes, asked, KnownAnswers(small), 1)
        >>> metrics["mrr_tails"], metrics["mrr_heads"]  # one rival ties
        (0.4, 0.5)
    """
    ranks, kinds = [], []
    for batch in batches:
        real = batch.labels[:, 0] >= 0
        answers = known(batch.entities[real], batch.relations[real])
        size = max(1 << max(len(answers.rows) - 1, 0).bit_length(), _SMALLEST_BUCKET)
        # Filled up to a power of two, for few compilations; real questions stand before the fillers of a batch.
        rows, ids = np.full(size, len(real), np.int32), np.zeros(size, np.int32)
        rows[: len(answers.rows)], ids[: len(answers.rows)] = answers
        found = _ranks(embed_fn(batch), classes, batch.labels[:, 0], rows, ids, block_size=block_size)
        ranks.append(np.asarray(found, np.float64)[real])
        kinds.append(batch.relations[real])
    if not ranks or not sum(map(len, ranks)):
        raise ValueError("expected at least one question to evaluate, got none.")
    rank, heads = np.concatenate(ranks), np.concatenate(kinds) >= num_relations
    return {
        "mrr": float(np.mean(1 / rank)),
        "mrr_tails": _mean(1 / rank[~heads]),
        "mrr_heads": _mean(1 / rank[heads]),
        **{f"hits_at_{k}": float(np.mean(rank <= k)) for k in ks},
        "median_rank": float(np.median(rank)),
        "num_questions": float(len(rank)),
    }


def _mean(values: Float[np.ndarray, " n"]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
