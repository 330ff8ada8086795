import numpy as np
import pytest
from data_helpers import random_examples
from hypothesis import given, settings, strategies as st
from scipy.sparse import csr_array

from candax.data import Batch, Batches, Examples, evaluation_batches


def same(a: Batch, b: Batch) -> bool:
    return all(x.dtype == y.dtype and np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def examples_with(features: list[list[float]], labels: list[list[int]], num_classes: int) -> Examples:
    dense = np.zeros((len(labels), num_classes), dtype=bool)
    for row, ids in enumerate(labels):
        dense[row, ids] = True
    return Examples(csr_array(np.array(features, dtype=np.float32)), csr_array(dense))


def check_rows(part: Batch, examples: Examples, rows: np.ndarray, max_features: int, max_labels: int) -> None:
    """Compares a batch with the rows it should hold, one by one."""
    for slot, row in enumerate(rows):
        dense = examples.features[[row]].toarray()[0]
        real = part.feature_ids[slot] >= 0
        ids = part.feature_ids[slot][real]
        order = sorted(np.flatnonzero(dense), key=lambda i: (-abs(dense[i]), i))
        assert sorted(ids) == sorted(order[:max_features])
        np.testing.assert_array_equal(part.feature_values[slot][real], dense[ids])
        assert (part.feature_values[slot][~real] == 0).all()
        assert (part.feature_ids[slot][~real] == -1).all()
        true = set(np.flatnonzero(examples.labels[[row]].toarray()[0]))
        kept = part.labels[slot][part.labels[slot] >= 0]
        assert len(set(kept)) == len(kept) == min(len(true), max_labels)
        assert set(kept) <= true
        assert (np.sort(part.labels[slot])[: max_labels - len(kept)] == -1).all()


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 9), st.integers(1, 12), st.integers(1, 9), st.integers(0, 5))
def test_batches_hold_their_rows(seed: int, batch_size: int, max_features: int, max_labels: int, epoch: int) -> None:
    examples = random_examples(seed)
    batches = Batches(examples, batch_size, seed, max_features, max_labels)
    for index in range(batches.batches_per_epoch):
        part = batches[epoch, index]
        assert part.feature_ids.shape == part.feature_values.shape == (batch_size, max_features)
        assert part.labels.shape == (batch_size, max_labels)
        assert [array.dtype for array in part] == [np.int32, np.float32, np.int32]
        rows = batches.rows(epoch, index)
        check_rows(part, examples, rows, max_features, max_labels)


def test_an_epoch_visits_every_example_once_but_the_last_few() -> None:
    examples = random_examples(0, points=23)
    batches = Batches(examples, 5, 0)
    assert batches.batches_per_epoch == 4
    for epoch in range(3):
        assert sorted(batches.order(epoch)) == list(range(23))
    assert not np.array_equal(batches.order(0), batches.order(1))
    assert not np.array_equal(batches.order(0), Batches(examples, 5, 1).order(0))


def test_batches_are_a_pure_function_of_the_position() -> None:
    examples = random_examples(0, points=40, density=0.8)
    forward = Batches(examples, 8, 3, 4, 3)
    positions = [(epoch, index) for epoch in range(3) for index in range(5)]
    first = {position: forward[position] for position in positions}
    backward = Batches(examples, 8, 3, 4, 3)
    for position in reversed(positions):
        assert same(backward[position], first[position])
    assert not same(first[0, 0], first[0, 1])


def test_the_order_is_the_same_with_every_numpy() -> None:
    """Worked out once; a change would make resumed runs go on in another order."""
    assert Batches(random_examples(0, points=8), 2, seed=11).order(5).tolist() == [1, 2, 6, 3, 4, 7, 5, 0]


def test_orders_are_uniform() -> None:
    """Chi-squared over the 24 orders of 4 examples: 23 degrees of freedom, 5 standard deviations are 34."""
    batches = Batches(random_examples(0, points=4), 1, seed=0)
    counts: dict[tuple[int, ...], int] = {}
    draws = 4800
    for epoch in range(draws):
        found = tuple(batches.order(epoch).tolist())
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 24
    statistic = sum((count - draws / 24) ** 2 / (draws / 24) for count in counts.values())
    assert statistic < 23 + 5 * np.sqrt(2 * 23)


def label_frequencies(batches: Batches, epochs: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    single, pairs = np.zeros(num_classes), np.zeros((num_classes, num_classes))
    for epoch in range(epochs):
        labels = batches[epoch, 0].labels
        present = (labels[:, :, None] == np.arange(num_classes)).any(axis=1).astype(float)
        single += present.sum(axis=0)
        pairs += present.T @ present
    draws = epochs * batches.batch_size
    return single / draws, pairs / draws


def subset_is_uniform(single: np.ndarray, pairs: np.ndarray, draws: int, kept: int) -> bool:
    """Each label and each pair is there as often as in a uniformly random subset: within 5 standard errors."""
    count = len(single)
    one, two = kept / count, kept * (kept - 1) / (count * (count - 1))
    off_diagonal = pairs[~np.eye(count, dtype=bool)]
    errors = [5 * np.sqrt(p * (1 - p) / draws) for p in (one, two)]
    # The test must be able to see a bias of 5 %.
    assert errors[0] < 0.05 * one
    assert errors[1] < 0.05 * two
    return bool((abs(single - one) < errors[0]).all() and (abs(off_diagonal - two) < errors[1]).all())


def test_surplus_labels_are_dropped_at_random() -> None:
    points, epochs, num_classes, kept = 1000, 60, 6, 3
    examples = examples_with([[1.0]] * points, [list(range(num_classes))] * points, num_classes)
    batches = Batches(examples, points, 0, 1, kept)
    frequencies = label_frequencies(batches, epochs, num_classes)
    assert subset_is_uniform(*frequencies, points * epochs, kept)


def test_planted_fault_one_label_favoured_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    points, epochs, num_classes, kept = 1000, 60, 6, 3
    examples = examples_with([[1.0]] * points, [list(range(num_classes))] * points, num_classes)
    batches = Batches(examples, points, 0, 1, kept)

    def biased(seed: int, epoch: int, branch: tuple[int, ...], size: int) -> np.ndarray:
        ranks = np.random.default_rng([seed, epoch, *branch]).random(size)
        # The first label of an example has a slightly better rank.
        return (np.where(np.arange(size) % num_classes == 0, ranks * 0.9, ranks) * 2**63).astype(np.uint64)

    monkeypatch.setattr("candax.data.batches.random_bits", biased)
    assert not subset_is_uniform(*label_frequencies(batches, epochs, num_classes), points * epochs, kept)


def test_each_epoch_draws_another_subset_of_the_labels() -> None:
    examples = examples_with([[1.0]] * 4, [list(range(9))] * 4, 9)
    batches = Batches(examples, 4, 0, 1, 3)
    assert len({batches[epoch, 0].labels.tobytes() for epoch in range(10)}) == 10


def test_surplus_features_are_the_smallest_ones() -> None:
    examples = examples_with([[0.5, -3, 0, 2, 2, -2, 1]], [[0]], 1)
    part = Batches(examples, 1, 0, 3, 1)[0, 0]
    assert part.feature_ids.tolist() == [[1, 3, 4]]
    assert part.feature_values.tolist() == [[-3, 2, 2]]


def test_default_widths_come_from_the_data() -> None:
    lengths = [3] * 995 + [200] * 5
    features = [[1.0] * n + [0.0] * (300 - n) for n in lengths]
    examples = examples_with(features, [list(range(n)) for n in [9] * 995 + [40] * 5], 50)
    batches = Batches(examples, 10, 0)
    assert (batches.max_features, batches.max_labels) == (8, 16)
    assert batches.truncated_labels == 0.005
    more = examples_with(features[:-1] + [features[-1]] * 2, [[0]] * 1001, 50)
    assert Batches(more, 10, 0).max_features == 200
    many = examples_with([[1.0] * 300] * 4, [list(range(50))] * 4, 50)
    assert (Batches(many, 2, 0).max_features, Batches(many, 2, 0).max_labels) == (304, 16)


def test_examples_without_features_or_labels() -> None:
    examples = Examples(csr_array((3, 4), dtype=np.float32), csr_array((3, 5), dtype=bool))
    part = Batches(examples, 3, 0)[0, 0]
    assert (part.feature_ids == -1).all()
    assert (part.feature_values == 0).all()
    assert (part.labels == -1).all()


def test_wrong_arguments() -> None:
    examples = random_examples(0)
    with pytest.raises(ValueError, match=r"batch_size from 1 to 20, the number of examples; got 21"):
        Batches(examples, 21, 0)
    with pytest.raises(ValueError, match=r"batch_size from 1 to 20, .*; got 0"):
        Batches(examples, 0, 0)
    with pytest.raises(ValueError, match=r"seed of 0 or more; got -1"):
        Batches(examples, 2, -1)
    with pytest.raises(ValueError, match=r"max_labels of 1 or more, or None"):
        Batches(examples, 2, 0, max_labels=0)
    for position in ((0, 10), (0, -1), (-1, 0)):
        with pytest.raises(IndexError, match=r"index from 0 to 9; got epoch"):
            Batches(examples, 2, 0)[position]
    with pytest.raises(ValueError, match=r"max_features of 1 or more; got 0"):
        evaluation_batches(examples, 2, 0)


def test_identities_tell_batches_apart() -> None:
    examples = random_examples(0)
    identity = Batches(examples, 2, 0).identity
    assert identity == Batches(random_examples(0), 2, 0).identity
    others = [
        Batches(random_examples(1), 2, 0),
        Batches(examples, 3, 0),
        Batches(examples, 2, 1),
        Batches(examples, 2, 0, max_features=3),
        Batches(examples, 2, 0, max_labels=3),
    ]
    assert all(other.identity != identity for other in others)


def test_evaluation_visits_all_examples_in_order() -> None:
    examples = random_examples(4, points=11, density=0.7)
    parts = list(evaluation_batches(examples, 4, 5))
    assert [rows for _, rows in parts] == [slice(0, 4), slice(4, 8), slice(8, 11)]
    most_labels = int(np.diff(examples.labels.indptr).max())
    for part, rows in parts:
        assert part.feature_ids.shape == (4, 5)
        assert part.labels.shape == (4, most_labels)
        check_rows(part, examples, np.arange(rows.start, rows.stop), 5, most_labels)
    padding = parts[-1][0]
    assert (padding.labels[3:] == -1).all()
    assert (padding.feature_ids[3:] == -1).all()
    assert (padding.feature_values[3:] == 0).all()


def test_evaluation_truncates_features_as_training_does() -> None:
    examples = random_examples(5, density=0.9)
    trained = Batches(examples, 20, 0, 4, 9)
    tested, _ = next(evaluation_batches(examples, 20, 4))
    np.testing.assert_array_equal(trained[0, 0].feature_ids, tested.feature_ids[trained.order(0)])


def test_evaluation_may_leave_the_labels_to_the_data_set() -> None:
    tested, _ = next(evaluation_batches(random_examples(5), 20, 4, max_labels=1))
    assert tested.labels.shape == (20, 1)


def test_labels_beyond_the_width_are_counted() -> None:
    examples = random_examples(0, points=5000, num_features=300, num_classes=60, density=0.1)
    assert 0.05 < Batches(examples, 256, 0, 64, 8).truncated_labels < 0.3
