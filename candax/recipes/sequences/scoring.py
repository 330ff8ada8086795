"""Figures of scorers of all items: recall, nDCG and MRR of the next item, and the share of items ever shown."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from candax import models
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.neighbours import seen_pairs
from candax.recipes.sequences.packing import packed_questions
from candax.training import embed

KS = (5, 10, 20)
# Gives scores of all items for some questions: [n, num_items], the larger the better.
Scorer: TypeAlias = Callable[[Questions], Float32[np.ndarray, "n num_items"]]
_SCORES_AT_A_TIME = 1 << 24
# Rows of packed histories that are read at a time.
_ROWS = 64


def embedded(
    model: models.Classifier, sequences: Sequences, questions: Questions, length: int
) -> Float32[np.ndarray, "n dim"]:
    """The embedding that the head scores after each history, of which the latest ``length`` items are read."""
    batches = packed_questions(sequences, questions, length, _ROWS)
    return np.concatenate([np.asarray(embed(model, batch))[rows, places] for batch, rows, places in batches])


def model_scores(model: models.Classifier, sequences: Sequences, *, length: int) -> Scorer:
    """Logits of all items after each history, of which the latest ``length`` items are read."""

    def scores(questions: Questions) -> Float32[np.ndarray, "n num_items"]:
        found = _logits(embedded(model, sequences, questions, length), model.head.classes())
        return np.asarray(found)[:, : sequences.num_items]

    return scores


_best = jax.jit(lambda scores, k: jax.lax.top_k(scores, k)[1], static_argnums=1)
_logits = jax.jit(lambda h, classes: h @ classes.vectors.T + (0 if classes.biases is None else classes.biases))


def mean_of(scorers: Sequence[Scorer]) -> Scorer:
    """The mean of the log-probabilities of several models."""

    def scores(questions: Questions) -> Float32[np.ndarray, "n num_items"]:
        return np.mean([jax.nn.log_softmax(jnp.asarray(scorer(questions))) for scorer in scorers], axis=0)

    return scores


def mixed(scorer: Scorer, other: Scorer, weight: float) -> Scorer:
    """The scores of one scorer plus ``weight`` times those of another, divided by its largest for each question."""

    def scores(questions: Questions) -> Float32[np.ndarray, "n num_items"]:
        beside = other(questions)
        return scorer(questions) + weight * beside / np.maximum(beside.max(axis=1, keepdims=True), 1e-30)

    return scores


def evaluate(scorer: Scorer, sequences: Sequences, questions: Questions, *, ks: Sequence[int] = KS) -> dict[str, float]:
    """Recall, nDCG and MRR at k of the one item that follows, over all items, and coverage.

    ``recall@k = [rank <= k]``, ``ndcg@k = [rank <= k] / log2(1 + rank)``, ``mrr@k = [rank <= k] / rank``, means over
    questions; ``coverage@k`` is the share of items that are among the first k of any question. There are two
    protocols: items of the history are left out of the ranking, as in most published tables, or ranked like the others;
    names of the latter's figures begin with "ranked ". An answer that is in its own history is ranked by both, so that
    the former is higher there than what ``recommend`` reaches, which gives no seen item.
    """
    size = max(1, _SCORES_AT_A_TIME // sequences.num_items)
    ranks: dict[str, list[np.ndarray]] = {"": [], "ranked ": []}
    shown = {k: np.zeros(sequences.num_items, bool) for k in ks}
    for start in range(0, len(questions), size):
        some = questions[slice(start, start + size)]
        scores = np.array(scorer(some))
        seen = seen_pairs(sequences, some)
        ranks["ranked "].append(rank_of_answers(scores, some))
        answers = np.arange(len(some)), some.answers
        own = scores[answers]
        scores[seen] = -np.inf
        best = np.asarray(_best(scores, min(max(ks), scores.shape[1])))
        is_shown = np.take_along_axis(scores, best, axis=1) > -np.inf
        for k in ks:
            shown[k][best[:, :k][is_shown[:, :k]]] = True
        # An answer that is in the history stays in the ranking.
        scores[answers] = own
        ranks[""].append(rank_of_answers(scores, some))
    figures = {}
    for name, parts in ranks.items():
        rank = np.concatenate(parts)
        for k in ks:
            hit = rank <= k
            figures[f"{name}recall@{k}"] = float(hit.mean())
            figures[f"{name}ndcg@{k}"] = float((hit / np.log2(1 + rank)).mean())
            figures[f"{name}mrr@{k}"] = float((hit / rank).mean())
    return figures | {f"coverage@{k}": float(of.mean()) for k, of in shown.items()}


def rank_of_answers(scores: Float[np.ndarray, "n num_items"], questions: Questions) -> Float[np.ndarray, " n"]:
    """The rank of each answer, 1 for the best; of items with equal scores the mean rank. NaN counts against it."""
    own = scores[np.arange(len(questions)), questions.answers]
    return np.asarray(_rank(scores, own), np.float64)


@jax.jit
def _rank(scores: Float[Array, "n num_items"], own: Float[Array, " n"]) -> Float[Array, " n"]:
    better, equal = jnp.sum(~(scores <= own[:, None]), axis=1), jnp.sum(scores == own[:, None], axis=1)
    # An answer that is NaN itself is among those that count as better, and is no equal of its own.
    return jnp.where(jnp.isnan(own), better, better + (equal + 1) / 2)
