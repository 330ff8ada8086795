"""What a flattened data set guarantees, for any data set, and that little more is left out than must be."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.sparse import csr_array

from candax.data import Dataset, Examples, distance_from_uniform, flatten_labels
from tests.data.data_helpers import random_dataset, same_dataset


def zipf_dataset(seed=0, num_examples=600, num_classes=40, unlabelled=True):
    """Up to 4 labels an example, class c about as often as 1 / (c + 5); the only feature is the example's number."""
    rng = np.random.default_rng(seed)
    weights = 1 / np.arange(5, num_classes + 5)
    labels = np.zeros((num_examples, num_classes), bool)
    for row in labels:
        size = rng.integers(0 if unlabelled else 1, 5)
        row[rng.choice(num_classes, size, replace=False, p=weights / weights.sum())] = True

    def examples(labels):
        return Examples(csr_array(np.arange(1, len(labels) + 1, dtype=np.float32)[:, None]), csr_array(labels))

    names = tuple(f"class{c}" for c in range(num_classes))
    return Dataset("zipf", examples(labels), examples(labels[:100]), None, names)


def numbers(examples):
    """Which examples of the original set are left."""
    return examples.features.toarray()[:, 0].astype(int) - 1


@given(st.integers(0, 10), st.integers(1, 30), st.integers(1, 30), st.integers(0, 3))
def test_counts_lie_within_bounds_and_examples_keep_their_labels(data_seed, a, b, seed):
    dataset, max_count, min_count = zipf_dataset(data_seed), max(a, b), min(a, b)
    # Class 0 has enough examples without any other class, whatever the cap: some class is always left.
    flat = flatten_labels(dataset, max_count=max_count, min_count=min_count, seed=seed)
    counts = flat.label_counts(flat.train)
    assert counts.min() >= min_count
    assert counts.max() <= max_count
    s = np.sqrt(min_count / max_count)
    assert distance_from_uniform(counts) <= (1 - s) / (1 + s) + 1e-9
    left = np.array([dataset.class_names.index(name) for name in flat.class_names])
    assert (np.diff(left) > 0).all()
    for before, after in ((dataset.train, flat.train), (dataset.test, flat.test)):
        assert np.diff(after.labels.indptr).min(initial=1) > 0
        np.testing.assert_array_equal(before.labels.toarray()[numbers(after)][:, left], after.labels.toarray())
        assert len(set(numbers(after))) == len(after)
    of_test = dataset.test.labels.toarray()[:, left].any(axis=1)
    np.testing.assert_array_equal(numbers(flat.test), np.flatnonzero(of_test))


@pytest.mark.parametrize("seed", [0, 1])
def test_no_example_is_left_out_without_need(seed):
    """With min_count=1 nothing but a full class keeps an example with labels out."""
    dataset = zipf_dataset()
    flat = flatten_labels(dataset, max_count=12, min_count=1, seed=seed)
    counts = dict(zip(flat.class_names, flat.label_counts(flat.train), strict=True))
    left_out = np.setdiff1d(np.arange(len(dataset.train)), numbers(flat.train))
    full = np.array([counts.get(name, 0) == 12 for name in dataset.class_names])
    labels = dataset.train.labels.toarray()[left_out]
    assert len(left_out) > 0
    assert (labels[:, full].any(axis=1) | ~labels.any(axis=1)).all()


def test_it_is_much_flatter_and_keeps_rare_classes_that_a_random_order_loses():
    dataset = zipf_dataset(num_examples=4000, num_classes=200)
    before = dataset.label_counts(dataset.train)
    flat = flatten_labels(dataset, max_count=20)
    assert distance_from_uniform(before[before >= 10]) > 0.3
    assert distance_from_uniform(flat.label_counts(flat.train)) < 0.14

    labels, order = dataset.train.labels.toarray(), np.random.default_rng(0).permutation(4000)
    counts = np.zeros(200)
    for row in labels[order]:
        if not (counts[row] >= 20).any():
            counts[row] += 1
    assert flat.num_classes > 1.3 * (counts >= 10).sum()


def test_a_cap_that_none_exceeds_takes_only_what_has_no_label():
    dataset = zipf_dataset()
    flat = flatten_labels(dataset, max_count=10_000, min_count=1)
    np.testing.assert_array_equal(numbers(flat.train), np.flatnonzero(np.diff(dataset.train.labels.indptr)))
    assert flat.class_names == tuple(np.array(dataset.class_names)[dataset.label_counts(dataset.train) > 0])


def test_the_seed_decides():
    dataset = random_dataset(3)
    a, b, c = (flatten_labels(dataset, max_count=3, min_count=1, seed=seed) for seed in (5, 5, 6))
    assert same_dataset(a, b)
    assert a.name == "random-uniform"
    assert a.num_features == dataset.num_features
    assert not same_dataset(a, c)


def test_bad_numbers_are_refused():
    dataset = zipf_dataset()
    with pytest.raises(ValueError, match="1 <= min_count <= max_count, got 0 and 0"):
        flatten_labels(dataset, max_count=0)
    with pytest.raises(ValueError, match="got 4 and 3"):
        flatten_labels(dataset, max_count=3, min_count=4)
    with pytest.raises(ValueError, match="got 0 and 3"):
        flatten_labels(dataset, max_count=3, min_count=0)
    with pytest.raises(ValueError, match="seed of 0 or more, got -1"):
        flatten_labels(dataset, max_count=3, seed=-1)
    with pytest.raises(ValueError, match="the most frequent of 40 has"):
        flatten_labels(dataset, max_count=5000)


def test_distance_from_uniform_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one label"):
        distance_from_uniform(np.zeros(3))
