"""Vectors and queries of `ann.py`: made up by a law, or trained here on real labels and texts."""

from pathlib import Path

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
    counts = dataset.label_counts(dataset.train)
    head = cx.Head(
        dataset.num_classes,
        DIM,
        sampler=cx.samplers.unigram(2048, smoothing=1.0),
        loss=cx.losses.sampled_softmax,
        counts=counts,
        biases=False,
        rngs=nnx.Rngs(1),
    )
    model = cx.models.Classifier(cx.models.SparseMLP(dataset.num_features, DIM, rngs=nnx.Rngs(0)), head)
    batches = cx.data.Batches(dataset.train, 256, 0)
    cx.training.fit(model, cx.Optimizer(model, optax.adam(3e-3)), batches, num_steps=num_steps, progress=False)
    rows = np.sort(np.random.default_rng(0).permutation(len(dataset.test))[:NUM_QUERIES])
    examples = cx.data.Examples(dataset.test.features[rows], dataset.test.labels[rows])
    ((batch, _),) = cx.data.evaluation_batches(examples, len(rows), batches.max_features)
    vectors = np.asarray(head.classes().vectors)[: dataset.num_classes]
    return _most_frequent(vectors, counts, at_most), np.asarray(cx.training.embed(model, batch))


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
