"""Measures of word vectors that need no judgements: words held out, and geometry."""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int, Int64

from candax.data import Words, words_of
from candax.data.windows import SkipGramBatch, WindowBatches
from candax.files import replacing
from candax.recipes.words.scores import spearman

_HELD_OUT = 0.02
_MOST_PAIRS = 4000
_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
_CHUNK = 512
# The most frequent words make up this share of the text; all other words are rare.
_COMMON = 0.9


class Pairs(NamedTuple):
    """Words and a neighbour of each, from windows that training has not seen."""

    words: Int[np.ndarray, " n"]
    labels: Int[np.ndarray, " n"]


class Rank(NamedTuple):
    """``mrr``: mean reciprocal rank. ``power``: the exponent ``a`` that was chosen, see ``rank``."""

    mrr: float
    power: float


def split(text: Words, max_words: int | None, *, min_count: int, window: int, subsample: float) -> tuple[Words, Pairs]:
    """The text to train on, and pairs of words from the windows of its last 2 %.

    Args:
        text: all of it.
        max_words: how many of its first words are taken, held-out ones included; None: all.
        min_count: words that occur less often in the text to train on are left out.
        window: see ``WindowBatches``.
        subsample: see ``WindowBatches``; frequent words are dropped from held-out windows as they are in training.

    Returns:
        The text to train on, and at most 4000 pairs.

    Raises:
        ValueError: if the text is too short.
    """
    total = text.total if max_words is None else min(max_words, text.total)
    end = total - max(1, int(_HELD_OUT * total))
    train = words_of(text.name, text.sentences(0, end), min_count=min_count)
    number = {word: i for i, word in enumerate(train.words)}
    ids: list[int] = []
    for sentence in text.sentences(end, total):
        ids += [number[word] for word in sentence if word in number] + [-1]
    # With the counts of the text to train on: words are dropped as often as there.
    held = dataclasses.replace(train, ids=np.array(ids, np.int32), digest="")
    try:
        batches = WindowBatches(held, 16, 0, window=window, subsample=subsample, run_length=16)
    except ValueError as error:
        raise ValueError(f"{text.name}: its last 2 %, {total - end} words, are too few to measure with.") from error
    words, labels = [], []
    for index in range(batches.batches_per_epoch):
        batch = batches[0, index]
        assert isinstance(batch, SkipGramBatch)
        place, slot = np.nonzero(batch.labels >= 0)
        words.append(batch.words.reshape(-1)[place])
        labels.append(batch.labels[place, slot])
    pairs = Pairs(np.concatenate(words), np.concatenate(labels))
    chosen = np.random.default_rng(0).permutation(len(pairs.words))[:_MOST_PAIRS]
    return train, Pairs(pairs.words[chosen], pairs.labels[chosen])


def rare_words(text: Words) -> Bool[np.ndarray, " num_words"]:
    """All but the most frequent words that make up 90 % of the text."""
    return np.cumsum(text.counts) > _COMMON * text.total


def rank(
    inputs: Float[np.ndarray, "num_words dim"],
    outputs: Float[np.ndarray, "num_words dim"],
    pairs: Pairs,
    among: Bool[np.ndarray, " num_words"],
    counts: Int64[np.ndarray, " num_words"],
) -> Rank:
    """Mean reciprocal rank of the label of each pair among some words, by ``input . output + a log count``.

    The logits of a loss with correction are log p(c | x); without one they are less by the log of the noise. So that
    neither is favoured, ``a`` is chosen from 0, .25, ... 1 on every other pair, and the remaining pairs are measured.

    Args:
        inputs: vectors of the words.
        outputs: vectors of the words as classes.
        pairs: only those count whose label is ``among`` the words that can be named.
        among: the words that can be named.
        counts: occurrences of each word.

    Returns:
        See ``Rank``; NaN where fewer than two pairs count, or a vector is not finite.
    """
    chosen = among[pairs.labels]
    words, labels = pairs.words[chosen], pairs.labels[chosen]
    if len(words) < 2 or not (np.isfinite(inputs).all() and np.isfinite(outputs).all()):
        return Rank(float("nan"), float("nan"))
    place = np.cumsum(among) - 1
    outputs, log_counts = outputs[among], np.log(np.maximum(counts[among], 1)).astype(np.float32)
    reciprocal = np.zeros((len(_POWERS), len(words)))
    for start in range(0, len(words), _CHUNK):
        part = slice(start, start + _CHUNK)
        logits = inputs[words[part]] @ outputs.T
        for i, power in enumerate(_POWERS):
            reciprocal[i, part] = 1 / _ranks(logits + power * log_counts, place[labels[part]])
    best = int(np.argmax(reciprocal[:, ::2].mean(1)))
    return Rank(float(reciprocal[best, 1::2].mean()), _POWERS[best])


def _ranks(logits: Float[np.ndarray, "n m"], labels: Int[np.ndarray, " n"]) -> Float64[np.ndarray, " n"]:
    """The ranks of labels, from 1 on; equal logits share the middle of their ranks. NaN counts against a label."""
    own = np.take_along_axis(logits, labels[:, None], axis=1)
    above, equal = np.sum(~(logits <= own), axis=1), np.sum(logits == own, axis=1)
    # A label that is NaN itself is among those above, and is no equal of its own.
    return np.where(np.isnan(own[:, 0]), above, above + (equal + 1) / 2)


class Geometry(NamedTuple):
    """What the vectors look like, whatever they are good for.

    Attributes:
        input_length: rank correlation of a vector's length with its word's frequency.
        output_length: the same of the vectors of classes.
        mean_cosine: between the vectors of two different words, on average.
    """

    input_length: float
    output_length: float
    mean_cosine: float


def geometry(
    inputs: Float[np.ndarray, "num_words dim"],
    outputs: Float[np.ndarray, "num_words dim"],
    counts: Int64[np.ndarray, " num_words"],
) -> Geometry:
    """See ``Geometry``."""
    n, units = len(inputs), _units(inputs).astype(np.float64)
    mean_cosine = (np.sum(np.sum(units, axis=0) ** 2) - np.sum(units**2)) / (n * (n - 1))
    of_inputs, of_outputs = (
        spearman(np.linalg.norm(table, axis=1), counts.astype(np.float64)) for table in (inputs, outputs)
    )
    return Geometry(of_inputs, of_outputs, float(mean_cosine))


def nearest(inputs: Float[np.ndarray, "num_words dim"], words: int = 1000, k: int = 10) -> Int[np.ndarray, "words k"]:
    """For each of the most frequent words, the words whose vectors have the largest cosine with its own."""
    units = _units(inputs)
    words, k = min(words, len(units)), min(k, len(units) - 1)
    cosines = units[:words] @ units.T
    np.fill_diagonal(cosines, -np.inf)
    return np.argpartition(-cosines, k - 1, axis=1)[:, :k].astype(np.int32)


def overlap(one: Int[np.ndarray, "words k"], other: Int[np.ndarray, "words k"]) -> float:
    """The share of neighbours that two lists of them have in common."""
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(one.tolist(), other.tolist(), strict=True)]))


def nearest_file(folder: Path, name: str, seed: int) -> Path:
    """The file that ``save_nearest`` writes of one training for ``shared_neighbours``."""
    return folder / f"nearest-{name.replace(' ', '-')}-{seed}.npy"


def save_nearest(path: Path, inputs: Float[np.ndarray, "num_words dim"]) -> None:
    """Writes ``nearest``."""
    with replacing(path) as file:
        np.save(file, nearest(inputs))


def shared_neighbours(folder: Path, name: str, reference: str, seeds: Iterable[int]) -> float | None:
    """The mean overlap with the reference trained with other seeds, or with the only one.

    None if there is none, as for the reference itself with one seed: with itself it shares all.
    """
    seeds = list(seeds)
    shares = [
        overlap(np.load(one), np.load(other))
        for a in seeds
        for b in seeds
        if (a != b or (len(seeds) == 1 and name != reference))
        and (one := nearest_file(folder, name, a)).exists()
        and (other := nearest_file(folder, reference, b)).exists()
    ]
    return float(np.mean(shares)) if shares else None


def _units(vectors: Float[np.ndarray, "n dim"]) -> Float[np.ndarray, "n dim"]:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1)
