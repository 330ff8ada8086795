"""Exact evaluation of link prediction: filtered ranks over all entities, in both directions."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Float64, Int

from candax.base import Classes
from candax.blocks import DEFAULT_BLOCK_SIZE, Block, accumulator_dtype, block_logits, walk
from candax.checks import check_positive, checked
from candax.cosines import as_scored
from candax.data import KnownAnswers, QuestionBatch

KS = (1, 3, 10)
_SMALLEST_BUCKET = 1024


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


_ranks = jax.jit(streaming_ranks, static_argnames="block_size")


@checked
def evaluate_links(
    embed_fn: Callable[[Any], Float[Array, "B dim"]],
    classes: Classes,
    batches: Iterable[QuestionBatch],
    known: KnownAnswers,
    num_relations: int,
    *,
    ks: tuple[int, ...] = KS,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> dict[str, float]:
    """Mean reciprocal rank and hits@k of the answers, filtered.

    mrr = mean of 1 / rank, hits@k = share of ranks <= k; ranks as in ``streaming_ranks``, every other
    known answer left out of the ranking. Never holds ``[questions, num_entities]`` numbers.

    Args:
        embed_fn: the encoder, from a batch to embeddings. It should be jitted.
        classes: the entities as the output layer.
        batches: questions with their answers; padding does not count.
        known: all answers that are known, those of the test part among them.
        num_relations: of the graph: relation numbers from there on ask for heads.
        ks: which k to report.
        block_size: the most entities scored at a time.

    Returns:
        ``mrr``, ``mrr_tails``, ``mrr_heads`` (of the questions for tails and for heads alone), ``hits@k`` for every
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
    check_positive("num_relations", num_relations)
    every = list(batches)
    ranks = link_ranks(embed_fn, classes, every, known, block_size=block_size)
    kinds = np.concatenate([batch.relations[batch.labels[:, 0] >= 0] for batch in every] or [np.zeros(0, int)])
    return link_figures(ranks, kinds >= num_relations, ks=ks)


def link_ranks(
    embed_fn: Callable[[Any], Float[Array, "B dim"]],
    classes: Classes,
    batches: Iterable[QuestionBatch],
    known: KnownAnswers,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Float64[np.ndarray, " N"]:
    """The rank of each answer, padding left out; see ``evaluate_links``."""
    ranks = [np.zeros(0)]
    for batch in batches:
        real = batch.labels[:, 0] >= 0
        answers = known(batch.entities[real], batch.relations[real])
        size = max(1 << max(len(answers.rows) - 1, 0).bit_length(), _SMALLEST_BUCKET)
        # Filled up to a power of two, for few compilations; real questions stand before the fillers of a batch.
        rows, ids = np.full(size, len(real), np.int32), np.zeros(size, np.int32)
        rows[: len(answers.rows)], ids[: len(answers.rows)] = answers
        found = _ranks(embed_fn(batch), classes, batch.labels[:, 0], rows, ids, block_size=block_size)
        ranks.append(np.asarray(found, np.float64)[real])
    return np.concatenate(ranks)


def scored_ranks(
    scores_of: Callable[[QuestionBatch], Float[np.ndarray, "B num_entities"]],
    batches: Iterable[QuestionBatch],
    known: KnownAnswers,
) -> Float64[np.ndarray, " N"]:
    """As ``link_ranks``, for a function that scores all entities at once; larger scores are better."""
    ranks = [np.zeros(0)]
    for batch in batches:
        real = batch.labels[:, 0] >= 0
        scores = scores_of(batch)[real]
        own = np.take_along_axis(scores, batch.labels[real], axis=1)
        rival = np.ones(scores.shape, bool)
        rival[known(batch.entities[real], batch.relations[real])] = False
        np.put_along_axis(rival, batch.labels[real], False, axis=1)
        better, equal = (np.sum(rival & found, axis=1) for found in (~(scores <= own), scores == own))
        ranks.append(1 + better + equal / 2)
    return np.concatenate(ranks)


def link_figures(
    ranks: Float64[np.ndarray, " N"], asks_heads: Bool[np.ndarray, " N"], *, ks: tuple[int, ...] = KS
) -> dict[str, float]:
    """Figures of ranks; see ``evaluate_links``."""
    if not len(ranks):
        raise ValueError("expected at least one question to evaluate, got none.")
    return {
        "mrr": float(np.mean(1 / ranks)),
        "mrr_tails": _mean(1 / ranks[~asks_heads]),
        "mrr_heads": _mean(1 / ranks[asks_heads]),
        **{f"hits@{k}": float(np.mean(ranks <= k)) for k in ks},
        "median_rank": float(np.median(ranks)),
        "num_questions": float(len(ranks)),
    }


def _mean(values: Float[np.ndarray, " n"]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")
