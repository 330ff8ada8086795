"""What two towers find for users: scores of all items, and figures through an index."""

import time
from typing import Any

import jax
import numpy as np
from jaxtyping import Float32
from scipy.sparse import csr_array

from candax import models, samplers
from candax.recipes.retrieval.batches import users_asked, with_users
from candax.recipes.retrieval.metrics import evaluate_retrieval, index_search
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.neighbours import seen_pairs
from candax.recipes.sequences.packing import packed_questions
from candax.recipes.sequences.scoring import Scorer
from candax.training import embed

_ROWS = 64
_AT_A_TIME = 1024


def embeddings(
    model: models.Classifier, sequences: Sequences, questions: Questions, length: int
) -> Float32[np.ndarray, "n dim"]:
    """Of the user of each question, of whose history the latest ``length`` items are read."""
    found: list[np.ndarray] = []
    # Without names of users nothing is known about them.
    users = users_asked(sequences, questions) if sequences.user_names else np.full(len(questions), -1)
    first = 0
    for batch, rows, places in packed_questions(sequences, questions, length, _ROWS):
        # A batch holds questions one after the other, each of which is a segment.
        read: Any = batch
        if model.encoder.users is not None:
            read = with_users(batch, users[first : first + len(rows)])
        found.append(np.asarray(embed(model, read))[rows, places])
        first += len(rows)
    return np.concatenate(found)


def tower_scores(model: models.Classifier, sequences: Sequences, length: int) -> Scorer:
    """Logits of all items for each user."""
    vectors = np.asarray(model.head.whole().vectors)[: sequences.num_items]
    return lambda questions: embeddings(model, sequences, questions, length) @ vectors.T


def indexed_figures(
    model: models.Classifier, sequences: Sequences, questions: Questions, length: int, *, seed: int, ks: tuple[int, ...]
) -> dict[str, Any]:
    """Recall and nDCG through IVF-BQ, which reads about a tenth of the items' codes; seen items are left out.

    Args:
        model: at the end of training.
        sequences: that the questions are about.
        questions: with answers.
        length: the most items that are read of a history.
        seed: of the index.
        ks: which k.

    Returns:
        ``indexed recall@k``, ``indexed ndcg@k``, the seconds in which the index was built and the share of codes that
        are read; nothing where there are fewer items than the least k.
    """
    ks = tuple(k for k in ks if k <= sequences.num_items)
    if not ks:
        return {}
    classes, number = model.head.whole(), sequences.num_items
    rows, items = seen_pairs(sequences, questions)
    # An answer that is in the history is asked for nevertheless, as in exact figures.
    others = items != questions.answers[rows]
    shape = (len(questions), number)
    seen = csr_array((np.ones(others.sum(), bool), (rows[others], items[others])), shape=shape)
    answers = csr_array((np.ones(len(questions), bool), (np.arange(len(questions)), questions.answers)), shape=shape)
    # The most that is asked for: what is left out may come first.
    asked = max(ks) + int(np.diff(seen.indptr).max(initial=0))
    share = _read(number, asked)
    index = _index(number, share, asked)
    start = time.perf_counter()
    built = jax.block_until_ready(jax.jit(index.build)(jax.random.key(seed), classes))
    seconds = time.perf_counter() - start
    users = embeddings(model, sequences, questions, length)
    pages = range(0, len(users), _AT_A_TIME)
    figures = evaluate_retrieval(
        lambda part: part,
        index_search(index, built, classes),
        [(users[at : at + _AT_A_TIME], slice(at, min(at + _AT_A_TIME, len(users)))) for at in pages],
        answers,
        ks=ks,
        exclude=seen,
    )
    named = {f"indexed {name.replace('_at_', '@')}": value for name, value in figures.items() if name != "num_examples"}
    return {**named, "build_seconds": seconds, "share_of_codes_read": share / number}


def _read(number: int, asked: int) -> int:
    """Codes that are read for a user."""
    return min(number, max(number // 10, 2 * asked))


def _index(number: int, seen: int, asked: int) -> Any:
    return samplers.ivf_index(
        num_centers=max(1, min(256, number // 64)),
        hm_num=seen,
        num_kept=min(seen, max(seen // 5, asked)),
        codes="rotated",
        near="logit",
    )
