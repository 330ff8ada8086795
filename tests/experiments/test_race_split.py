"""Split classes: the old ones in parts, which the features tell."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_array

from candax.data import Dataset, Examples
from candax.experiments.race import Race, race
from candax.experiments.race_split import split_classes
from tests.commands import fails, write_dataset

N, FEATURES, C = 200, 50, 7


@pytest.fixture
def dataset():
    rng = np.random.default_rng(0)
    features = rng.random((N, FEATURES), dtype=np.float32) * (rng.random((N, FEATURES)) < 0.2)
    features[3] = 0
    examples = Examples(csr_array(features), csr_array(rng.random((N, C)) < 0.3))
    return Dataset("made", examples, examples)


def test_each_label_becomes_one_of_its_parts_and_those_of_an_example_the_same(dataset):
    split = split_classes(dataset, 100)
    assert split.num_classes == 15 * C
    before, after = dataset.train.labels, split.train.labels
    np.testing.assert_array_equal(after.indptr, before.indptr)
    np.testing.assert_array_equal(after.indices // 15, before.indices)
    for row in range(N):
        assert len(set(after.indices[after.indptr[row] : after.indptr[row + 1]] % 15)) <= 1
    assert len(set(after.indices % 15)) == 15


def test_the_part_follows_from_the_features_alone(dataset):
    split = split_classes(dataset, 4 * C)
    test = Examples(dataset.train.features[::-1], dataset.train.labels[::-1])
    turned = split_classes(dataclasses.replace(dataset, test=test), 4 * C)
    np.testing.assert_array_equal(turned.test.labels.toarray(), split.train.labels.toarray()[::-1])


def test_parts_are_even(dataset):
    """Each direction is cut at its median; so are two of them, roughly, where they do not depend on each other."""
    labels = split_classes(dataset, 4 * C).train.labels
    part = labels.indices[labels.indptr[:-1][np.diff(labels.indptr) > 0]] % 4
    shares = np.bincount(part, minlength=4) / len(part)
    assert np.all((shares > 0.1) & (shares < 0.4))


def test_as_many_classes_as_there_are_stay_as_they_are(dataset):
    assert split_classes(dataset, C).train.labels is dataset.train.labels


@pytest.mark.parametrize("number", [C - 1, 2**31])
def test_fewer_classes_and_too_many_are_refused(dataset, number):
    with pytest.raises(ValueError, match="classes, got"):
        split_classes(dataset, number)


def test_a_race_over_split_classes(tmp_path):
    folder = write_dataset(tmp_path / "data")
    settings = Race(dataset=str(folder), num_classes=50, samplers=("unigram",), losses=("one_vs_all",), rates=(1.0,),
                    quick=True, out=tmp_path)  # fmt: skip
    full, unigram = race(settings)
    assert full["best"] > 0.5
    assert unigram["best"] > 0.5


def test_other_tasks_do_not_split_classes(tmp_path, capsys):
    line = fails(capsys, "experiment", "race", "--task", "links", "--num-classes", "50", "--out", tmp_path)
    assert "--num-classes" in line
