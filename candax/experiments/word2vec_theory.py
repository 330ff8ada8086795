"""Theory for `word2vec_questions`: with full-rank vectors, inner products are PMI - log k, shifted by the noise."""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optax
from jaxtyping import Float64
from rich.console import Console

from candax import losses
from candax.data import Words, words_of
from candax.data.windows import SkipGramBatch, WindowBatches
from candax.recipes import common, words
from candax.recipes.words.training import vectors_of

# Noise words per pair and the exponent of their frequencies.
CASES = {"unigram, k=1": (1.0, 1.0), "unigram, k=5": (5.0, 1.0), "unigram^.75, k=5": (5.0, 0.75)}
_WORDS = 200
_MOST_TEXT = 100_000
_POINTS = 300


def small_text(text: Words, num_words: int = _WORDS) -> Words:
    """A text with only its most frequent words, cut to at most 100,000 words."""
    kept = set(text.words[:num_words])
    sentences = ([word for word in sentence if word in kept] for sentence in text.sentences())
    short = words_of(text.name, (s for s in sentences if len(s) > 1), min_count=1)
    return words_of(text.name, short.sentences(0, _MOST_TEXT), min_count=1)


def theory(
    text: Words,
    folder: Path | None = None,
    *,
    k: float,
    power: float,
    epochs: float,
    window: int,
    seed: int,
    batch_size: int = 256,
) -> dict[str, Any]:
    """Trains skip-gram on a small vocabulary, with as many coordinates as words, and compares with the optimum.

    The optimum of negative sampling with k draws from q is, if the logit of every pair is a free number,
    ``log(P(w, c) / (P(w) q(c) k))``: where q is the distribution of the neighbours c, PMI - log k. P is counted over
    the windows of the very batches that are trained on.

    Returns:
        What ``fit`` gives, against the prediction; ``rmse_pmi``, against PMI - log k; ``share_of_text``, ``seconds``;
        and ``points``: for some pairs (PMI - log k, predicted, fitted).
    """
    batches = words.word2vec_batches(text, batch_size=batch_size, seed=seed, window=window, subsample=0)
    num_steps = max(1, round(epochs * batches.batches_per_epoch))
    options: dict[str, Any] = {"dim": text.num_words, "k": k, "power": power, "num_sampled": 256, "seed": seed}
    options |= {"optimizer": optax.adam, "learning_rate": 0.01}

    def measure(model: Any) -> dict[str, Any]:
        inputs, outputs = (table.astype(np.float64) for table in vectors_of(model))
        fitted = inputs @ outputs.T
        counts = _count_pairs(batches, num_steps)
        noise = text.counts.astype(np.float64) ** power
        with np.errstate(divide="ignore"):
            conditional = np.log(counts) - np.log(counts.sum(1, keepdims=True))
            predicted = conditional - np.log(noise / noise.sum()) - math.log(k)
            pmi = conditional - np.log(counts.sum(0) / counts.sum()) - math.log(k)
        # What is hardly ever seen is hardly trained: its optimum lies far below 0, and is reached only in the end.
        often = counts >= 50 * epochs
        chosen = np.flatnonzero(often.reshape(-1))
        chosen = np.sort(np.random.default_rng(0).permutation(chosen)[:_POINTS])
        points = np.stack([table.reshape(-1)[chosen] for table in (pmi, predicted, fitted)], axis=1)
        return {
            **fit(predicted[often], fitted[often]),
            "rmse_pmi": fit(pmi[often], fitted[often])["rmse"],
            "share_of_text": float(counts[often].sum() / counts.sum()),
            "points": np.round(points, 3).tolist(),
        }

    def make(*_: Any) -> Any:
        return words.word2vec_model(batches, num_steps, **options)

    training = common.Training(make, batches, num_steps, measure, loss_fn=words.word2vec_step_loss)
    return training.by(None, losses.full_softmax, "theory")(folder)


def study(text: Words, *, epochs: float, window: int, seeds: range) -> common.Study:
    """The theory on a text's most frequent words, in all cases and with some seeds: see ``theory``."""
    of = functools.partial(theory, small_text(text), epochs=epochs, window=window)
    names = {"correlation": ".3f", "slope": ".3f", "intercept": ".3f", "rmse": ".3f", "pairs": ",.0f"}
    names |= {"rmse_pmi": ".3f", "seconds": ".0f"}
    headings = {"rmse": "RMSE", "rmse_pmi": "RMSE to PMI - log k"}
    axes = {"xlabel": "predicted", "ylabel": "inner product of the vectors"}
    return common.Study(
        "inner products of full-rank vectors and their prediction",
        [
            common.Method({"method": case, "seed": seed}, functools.partial(of, k=k, power=power, seed=seed))
            for case, (k, power) in CASES.items()
            for seed in seeds
        ],
        [
            common.Column("noise", "method"),
            *(common.Column(headings.get(name, name), name, form, spread=True) for name, form in names.items()),
        ],
        [common.Panel(_points(case), {"title": case, **axes}) for case in CASES],
        picture="theory.png",
        may_change=("questions", "seeds"),
        data=text.digest,
    )


def _points(case: str) -> Callable[[Sequence[common.Row]], list[common.Line]]:
    """Fitted numbers over PMI - log k and over the prediction, and the line where both are equal."""

    def lines(rows: Sequence[common.Row]) -> list[common.Line]:
        pmi, predicted, fitted = np.array(next(row for row in rows if row["method"] == case)["points"]).T
        ends = np.array([predicted.min(), predicted.max()])
        dots = {"linestyle": "", "marker": ".", "markersize": 3, "alpha": 0.5}
        return [
            common.Line("over PMI - log k", pmi, fitted, dots),
            common.Line("over log(P(w, c) / (P(w) q(c) k))", predicted, fitted, dots),
            common.Line("equal", ends, ends, {"color": "black", "linestyle": "-", "linewidth": 1}),
        ]

    return lines


def fit(predicted: Float64[np.ndarray, " n"], fitted: Float64[np.ndarray, " n"]) -> dict[str, float]:
    """How fitted numbers follow predicted ones: ``fitted = slope predicted + intercept``, and the number of pairs.

    Example:
        >>> {name: round(x, 3) for name, x in fit(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0])).items()}
        {'correlation': 1.0, 'slope': 2.0, 'intercept': 1.0, 'rmse': 2.16, 'pairs': 3}
    """
    if len(predicted) < 3:
        raise ValueError(f"expected 3 pairs of words or more that occur often, found {len(predicted)}. Give more text.")
    slope, intercept = np.polyfit(predicted, fitted, 1)
    correlation, rmse = np.corrcoef(predicted, fitted)[0, 1], math.sqrt(np.mean((predicted - fitted) ** 2))
    numbers = {"correlation": correlation, "slope": slope, "intercept": intercept, "rmse": rmse}
    return {**{name: float(number) for name, number in numbers.items()}, "pairs": len(predicted)}


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
