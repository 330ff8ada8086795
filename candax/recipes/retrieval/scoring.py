"""What two towers find for users: scores of all items, and figures through an index."""

import time
from typing import Any

import jax
import numpy as np
from scipy.sparse import csr_array

from candax import models, samplers
from candax.recipes.retrieval.metrics import evaluate_retrieval, index_search
from candax.recipes.sequences.files import Questions, Sequences
from candax.recipes.sequences.neighbours import seen_pairs
from candax.recipes.sequences.scoring import Scorer, embedded

_AT_A_TIME = 1024


def tower_scores(model: models.Classifier, sequences: Sequences, length: int) -> Scorer:
    """Logits of all items for each user."""
    vectors = np.asarray(model.head.whole().vectors)[: sequences.num_items]
    return lambda questions: embedded(model, sequences, questions, length) @ vectors.T


def indexed_figures(
    model: models.Classifier, sequences: Sequences, questions: Questions, length: int, *, seed: int, ks: tuple[int, ...]
) -> dict[str, Any]:
    """Recall and nDCG through IVF-BQ, which reads about a tenth of the items' codes; seen items are left out.

    Returns:
        ``indexed recall@k``, ``indexed ndcg@k``, the seconds in which the index was built and the share of codes that
        are read; an empty dict where there are fewer items than the least k.
    """
    ks = tuple(k for k in ks if k <= sequences.num_items)
    if not ks:
        return {}
    classes, number = model.head.whole(), sequences.num_items
    rows, items = seen_pairs(sequences, questions)
    # An answer that is in the history stays in the ranking, as in the exact figures.
    others = items != questions.answers[rows]
    shape = (len(questions), number)
    seen = csr_array((np.ones(others.sum(), bool), (rows[others], items[others])), shape=shape)
    answers = csr_array((np.ones(len(questions), bool), (np.arange(len(questions)), questions.answers)), shape=shape)
    # Enough to fill the ranking even if all items to be left out come first.
    asked = max(ks) + int(np.diff(seen.indptr).max(initial=0))
    read = min(number, max(number // 10, 2 * asked))
    index = _index(number, read, asked)
    start = time.perf_counter()
    built = jax.block_until_ready(jax.jit(index.build)(jax.random.key(seed), classes))
    seconds = time.perf_counter() - start
    users = embedded(model, sequences, questions, length)
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
    return {**named, "build_seconds": seconds, "share_of_codes_read": read / number}


def _index(number: int, seen: int, asked: int) -> Any:
    return samplers.ivf_index(
        num_centers=max(1, min(256, number // 64)),
        hm_num=seen,
        num_kept=min(seen, max(seen // 5, asked)),
        codes="rotated",
        near="logit",
    )
