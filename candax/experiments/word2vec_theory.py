"""The theory of `word2vec_questions`: with full-rank vectors, inner products are PMI - log k, shifted by the noise."""

import math
from typing import Any, NamedTuple

import numpy as np
import optax
from jaxtyping import Float64
from rich.console import Console

from candax import training
from candax.data import Words, words_of
from candax.data.windows import SkipGramBatch, WindowBatches

# Noise words a pair and the exponent of their frequencies.
CASES = {"unigram, k=1": (1.0, 1.0), "unigram, k=5": (5.0, 1.0), "unigram^.75, k=5": (5.0, 0.75)}
_WORDS = 200
_MOST_TEXT = 100_000
_POINTS = 1500


class Fit(NamedTuple):
    """How fitted numbers follow predicted ones: ``fitted = slope predicted + intercept``, over so many pairs."""

    correlation: float
    slope: float
    intercept: float
    rmse: float
    pairs: int


def small_text(text: Words, num_words: int = _WORDS) -> Words:
    """The text of its most frequent words alone, at most 100,000 of them."""
    kept = set(text.words[:num_words])
    sentences = ([word for word in sentence if word in kept] for sentence in text.sentences())
    short = words_of(text.name, (s for s in sentences if len(s) > 1), min_count=1)
    return words_of(text.name, short.sentences(0, _MOST_TEXT), min_count=1)


def theory(
    text: Words, *, k: float, power: float, epochs: float, window: int, seed: int, batch_size: int = 256
) -> dict[str, Any]:
    """Trains skip-gram on a small vocabulary, with as many coordinates as words, and compares with the optimum.

    The optimum of negative sampling with k draws from q is, for a free number ``o`` of every pair,
    ``log(P(w, c) / (P(w) q(c) k))``: where q is the distribution of the neighbours c, PMI - log k. P is counted over
    the windows of the very batches that are trained on.

    Args:
        text: of few words, see ``small_text``.
        k: noise words a pair.
        power: of the frequencies that they are drawn by.
        epochs: passes over the text.
        window: the most words to either side.
        seed: of everything random.
        batch_size: places a step.

    Returns:
        As JSON values: ``fit``, against the prediction; ``fit_pmi``, against PMI - log k; ``points``, for some pairs
        (PMI - log k, predicted, fitted); and ``pairs``, ``of_pairs`` and ``seconds``.
    """
    batches = training.word2vec_batches(text, batch_size=batch_size, seed=seed, window=window, subsample=0)
    num_steps = max(1, round(epochs * batches.batches_per_epoch))
    program, model = training.word2vec_program(
        batches,
        num_steps,
        dim=text.num_words,
        k=k,
        power=power,
        num_sampled=256,
        optimizer=optax.adam,
        learning_rate=0.01,
        seed=seed,
    )
    state, records = training.fit_program(
        program, program.init(seed), batches, num_steps=num_steps, description="theory"
    )
    program.update_model(state)
    fitted = np.asarray(model.encoder.words[...], np.float64) @ np.asarray(model.head.vectors[...], np.float64).T
    counts = _count_pairs(batches, num_steps)
    noise = text.counts.astype(np.float64) ** power
    with np.errstate(divide="ignore"):
        conditional = np.log(counts) - np.log(counts.sum(1, keepdims=True))
        predicted = conditional - np.log(noise / noise.sum()) - math.log(k)
        pmi = conditional - np.log(counts.sum(0) / counts.sum()) - math.log(k)
    # What is hardly ever seen has hardly been trained: its optimum lies far below 0, and is reached in the end only.
    often = counts >= 50 * epochs
    chosen = np.flatnonzero(often.reshape(-1))
    chosen = np.sort(np.random.default_rng(0).permutation(chosen)[:_POINTS])
    points = np.stack([table.reshape(-1)[chosen] for table in (pmi, predicted, fitted)], axis=1)
    return {
        "fit": fit(predicted[often], fitted[often])._asdict(),
        "fit_pmi": fit(pmi[often], fitted[often])._asdict(),
        "share_of_text": float(counts[often].sum() / counts.sum()),
        "seconds": records[-1]["seconds"],
        "points": np.round(points, 3).tolist(),
    }


def fit(predicted: Float64[np.ndarray, "n"], fitted: Float64[np.ndarray, "n"]) -> Fit:
    """The least squares line, the correlation, and the root of the mean squared difference.

    Example:
        >>> [round(float(x), 3) for x in fit(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))]
        [1.0, 2.0, 1.0, 2.16, 3.0]
    """
    if len(predicted) < 3:
        raise ValueError(f"expected 3 pairs of words or more that occur often, found {len(predicted)}. Give more text.")
    slope, intercept = np.polyfit(predicted, fitted, 1)
    correlation = np.corrcoef(predicted, fitted)[0, 1]
    rmse = math.sqrt(np.mean((predicted - fitted) ** 2))
    return Fit(float(correlation), float(slope), float(intercept), rmse, len(predicted))


def _count_pairs(batches: WindowBatches, num_steps: int) -> Float64[np.ndarray, "num_words num_words"]:
    n = batches.text.num_words
    counts = np.zeros(n * n)
    with Console().status("counting pairs"):
        for step in range(num_steps):
            batch = batches[divmod(step, batches.batches_per_epoch)]
            assert isinstance(batch, SkipGramBatch)
            pairs = batch.words.reshape(-1, 1) * n + batch.labels
            counts += np.bincount(pairs[batch.labels >= 0], minlength=n * n)
    return counts.reshape(n, n)
