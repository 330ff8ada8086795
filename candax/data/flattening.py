"""Down-sampling of frequent classes, until all classes have about equally many examples."""

import dataclasses

import numpy as np
from jaxtyping import Bool, Float, Int64, Integer
from scipy.sparse import csr_array

from candax.checks import checked
from candax.data.epochs import random_bits
from candax.data.examples import Dataset, Examples

# A branch of the seed's random streams; batches use 0 and 1.
_TIES = 2


@checked
def flatten_labels(dataset: Dataset, *, max_count: int, min_count: int | None = None, seed: int = 0) -> Dataset:
    """Leaves training examples of frequent classes out, until no class has more than ``max_count``.

    1. Classes with fewer than ``min_count`` training examples are dropped.
    2. Training examples are visited in the order of how frequent their rarest class is, the rarest first; ties in the
       order of their most frequent class, again the rarest first; remaining ties in random order. An example is kept if
       none of its classes has ``max_count`` examples yet. (In purely random order, frequent classes are full before the
       rare ones that share examples with them have any, and fewer classes are left.)
    3. Classes that then have fewer than ``min_count`` examples are dropped, and so are examples without a class.

    What is left:

    * Every class has at least ``min_count`` and at most ``max_count`` training examples. So the label distribution is
      within (1 - s) / (1 + s), s = sqrt(min_count / max_count), of a uniform one (``distance_from_uniform``; 0.17 for
      half of ``max_count``), and as a rule much closer.
    * An example keeps all its labels among the classes that are left: no label is taken from an example alone, which
      would make its class a wrong negative.
    * Class ids are consecutive, in the old order. Features and their ids stay.
    * Test examples keep the labels that are left; those without a label are left out. They are not down-sampled: the
      test set says how the classes really are distributed.

    Args:
        dataset: Any; examples may have many labels, one, or none.
        max_count: The most training examples of a class.
        min_count: The fewest; None: half of ``max_count``, rounded up.
        seed: Of the random order; equal seeds give equal data sets, on any machine.

    Returns:
        A data set named ``<name>-uniform``.

    Raises:
        ValueError: For numbers out of range, or where no class is left.

    Example:
        >>> features = csr_array(np.ones((6, 1), dtype=np.float32))
        >>> labels = csr_array(np.array([[1, 0, 0]] * 4 + [[1, 1, 0], [0, 0, 1]], dtype=bool))
        >>> examples = Examples(features, labels)
        >>> flat = flatten_labels(Dataset("tiny", examples, examples), max_count=2, min_count=1)
        >>> flat.label_counts(flat.train)
        array([2., 1., 1.], dtype=float32)

    Source: Daghaghi et al., A Tale of Two Efficient and Informative Negative Sampling Distributions (2021), section
        3.5, makes Amazon-Uniform "by down sampling frequent classes"; it does not say how.
    """
    if min_count is None:
        min_count = -(-max_count // 2)
    if not 1 <= min_count <= max_count:
        raise ValueError(f"expected 1 <= min_count <= max_count, got {min_count} and {max_count}.")
    if seed < 0:
        raise ValueError(f"expected a seed of 0 or more, got {seed}.")
    labels = dataset.train.labels
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    labels = labels[:, np.flatnonzero(counts >= min_count)]
    kept = _keep(labels, max_count, seed)
    left = np.bincount(labels[kept].indices, minlength=labels.shape[1])
    classes = np.flatnonzero(counts >= min_count)[left >= min_count]
    if not len(classes):
        raise ValueError(
            f"expected classes with {min_count} training examples or more, got none that keeps as many: the most "
            f"frequent of {len(counts)} has {counts.max(initial=0)}. Lower min_count, or raise max_count."
        )

    def reduced(examples: Examples, some: Bool[np.ndarray, " N"]) -> Examples:
        labels = examples.labels[:, classes]
        rows = np.flatnonzero(some & (np.diff(labels.indptr) > 0))
        return Examples(examples.features[rows], labels[rows])

    names = dataset.class_names
    return dataclasses.replace(
        dataset,
        name=f"{dataset.name}-uniform",
        train=reduced(dataset.train, kept),
        test=reduced(dataset.test, np.ones(len(dataset.test), bool)),
        class_names=None if names is None else tuple(names[c] for c in classes),
    )


@checked
def distance_from_uniform(counts: Float[np.ndarray, " num_classes"] | Integer[np.ndarray, " num_classes"]) -> float:
    """How far a label distribution is from a uniform one: their total variation, (1/2) sum_c |f_c - 1/num_classes|.

    This is the share of all labels that would have to change their class: 0 for a uniform distribution, always below 1.

    Args:
        counts: How often each class is a label: ``dataset.label_counts(dataset.train)``.

    Returns:
        The distance.

    Raises:
        ValueError: If there are no labels.

    Example:
        >>> distance_from_uniform(np.array([2.0, 2.0])), distance_from_uniform(np.array([4.0, 0.0]))
        (0.0, 0.5)
    """
    total = float(counts.sum(dtype=np.float64))
    if not total > 0:
        raise ValueError(f"expected counts of at least one label, got a sum of {total:g}.")
    return float(np.abs(counts / total - 1 / len(counts)).sum() / 2)


def _keep(labels: csr_array, max_count: int, seed: int) -> Bool[np.ndarray, " N"]:
    """Which examples are kept: they are visited one after the other, and kept if none of their classes is full."""
    keep = np.zeros(labels.shape[0], bool)
    full = [max_count] * labels.shape[1]
    # Plain lists: each example depends on those before it, and single elements of arrays take many times longer.
    starts, ids = labels.indptr.tolist(), labels.indices.tolist()
    for example in _order(labels, seed).tolist():
        own = ids[starts[example] : starts[example + 1]]
        if all(full[c] for c in own):
            for c in own:
                full[c] -= 1
            keep[example] = True
    return keep


def _order(labels: csr_array, seed: int) -> Int64[np.ndarray, " labelled"]:
    """The examples that have labels, sorted by their rarest class, then by their most frequent one, then at random."""
    labelled = np.flatnonzero(np.diff(labels.indptr))
    starts = labels.indptr[labelled]
    counts = np.bincount(labels.indices, minlength=labels.shape[1])
    rarest, commonest = (extreme.reduceat(counts[labels.indices], starts) for extreme in (np.minimum, np.maximum))
    ties = random_bits(seed, 0, (_TIES,), labels.shape[0])[labelled]
    return labelled[np.lexsort((ties, commonest, rarest))]
