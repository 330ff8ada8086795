"""Vectors and queries of `ann.py`: made up by a law, or trained here on real labels and texts."""

from pathlib import Path
from typing import Any

import numpy as np
import optax
from flax import nnx

import candax as cx

DIM, NUM_QUERIES = 128, 256
MADE, TRAINED = ("clustered", "anisotropic"), ("authors", "words")


def make_vectors(kind: str, num_classes: int, data: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Vectors [n, DIM] and queries [NUM_QUERIES, DIM], float32.

    Args:
        kind: "clustered": 1 Gaussian cluster of unequal size for 1000 vectors, queries near vectors. "anisotropic":
            Gaussian, the variance of the i-th principal axis is i^-1.4, queries of the same distribution. "authors":
            class vectors of a linear model from papers to authors, queries are embeddings of test papers. "words":
            word2vec of novels, the vectors of words as classes, queries are words as inputs, drawn by the square root
            of their frequency.
        num_classes: of the first two; of the others at most so many are taken, the most frequent ones.
        data: folder with `acl-authors` (the Extreme Classification Repository's format) and `eltec-eng` (a text), for
            the last two.
    """
    if kind in TRAINED:
        if data is None:
            raise ValueError(f"expected a folder of data for {kind!r} vectors, got none. Pass --data.")
        return (
            authors(data / "acl-authors", num_classes) if kind == "authors" else words(data / "eltec-eng", num_classes)
        )
    rng = np.random.default_rng(0)
    if kind == "clustered":
        number = max(2, num_classes // 1000)
        centers = rng.normal(size=(number, DIM)).astype(np.float32)
        share = rng.dirichlet(np.ones(number))
        vectors = centers[rng.choice(number, num_classes, p=share)]
        vectors += np.float32(0.7) * rng.standard_normal(vectors.shape, np.float32)
        queries = vectors[rng.integers(0, num_classes, NUM_QUERIES)]
        return vectors, queries + np.float32(0.3) * rng.standard_normal(queries.shape, np.float32)
    axes = np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] * np.arange(1, DIM + 1) ** -0.7
    return tuple(
        rng.standard_normal((n, DIM), np.float32) @ axes.T.astype(np.float32) for n in (num_classes, NUM_QUERIES)
    )


def authors(folder: Path, at_most: int, num_steps: int = 1500) -> tuple[np.ndarray, np.ndarray]:
    """Class vectors without biases, 4 epochs of 256 papers, 2048 unigram candidates."""
    dataset = cx.data.load(folder)
    model = classifier(dataset, DIM, cx.samplers.unigram(2048, smoothing=1.0), biases=False)
    batches = cx.data.Batches(dataset.train, 256, 0)
    cx.training.fit(model, cx.Optimizer(model, optax.adam(3e-3)), batches, num_steps=num_steps, progress=False)
    batch = some_tests(dataset, np.arange(len(dataset.test)), NUM_QUERIES, batches.max_features)
    vectors = np.asarray(model.head.classes().vectors)[: dataset.num_classes]
    counts = dataset.label_counts(dataset.train)
    return _most_frequent(vectors, counts, at_most), np.asarray(cx.training.embed(model, batch))


def classifier(dataset: cx.data.Dataset, dim: int, sampler: cx.Sampler, **options: Any) -> cx.models.Classifier:
    """A model from features to classes, to be trained by sampled softmax; options are those of ``cx.Head``."""
    counts = dataset.label_counts(dataset.train)
    own: dict[str, Any] = {"sampler": sampler, "loss": cx.losses.sampled_softmax, "counts": counts, **options}
    encoder = cx.models.SparseMLP(dataset.num_features, dim, rngs=nnx.Rngs(0))
    return cx.models.Classifier(encoder, cx.Head(dataset.num_classes, dim, rngs=nnx.Rngs(1), **own))


def some_tests(dataset: cx.data.Dataset, among: np.ndarray, number: int, max_features: int) -> Any:
    """One batch of test examples, drawn among some rows."""
    rows = np.sort(np.random.default_rng(0).permutation(among)[:number])
    examples = cx.data.Examples(dataset.test.features[rows], dataset.test.labels[rows])
    ((batch, _),) = cx.data.evaluation_batches(examples, len(rows), max_features)
    return batch


def words(folder: Path, at_most: int, epochs: float = 1) -> tuple[np.ndarray, np.ndarray]:
    """The vectors of words as classes, skipgram."""
    text = cx.data.text_words(sorted(folder.glob("*.txt*")), min_count=1)
    trained = cx.recipes.words.train_word2vec(text, epochs=epochs, dim=DIM)
    counts = np.asarray(text.counts, np.float64)
    share = np.sqrt(counts) / np.sqrt(counts).sum()
    asked = np.random.default_rng(0).choice(len(counts), NUM_QUERIES, replace=False, p=share)
    vectors = np.asarray(trained.outputs.vectors, np.float32)
    return _most_frequent(vectors, counts, at_most), np.asarray(trained.vectors.vectors, np.float32)[asked]


def _most_frequent(vectors: np.ndarray, counts: np.ndarray, number: int) -> np.ndarray:
    kept = np.sort(np.argsort(-np.asarray(counts), kind="stable")[:number])
    return np.ascontiguousarray(vectors[kept], np.float32)
