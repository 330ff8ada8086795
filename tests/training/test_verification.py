"""Metrics of face recognition, against answers found by trying everything."""

import numpy as np
import pytest

from candax.training import cosines, rank_1, verification


def by_trying(similarity, same, num_folds):
    """Every threshold for every fold; the pairs of each kind are dealt to the folds in runs."""
    fold_of = np.empty(len(same), int)
    for kind in (True, False):
        places = np.flatnonzero(same == kind)
        for fold, part in enumerate(np.array_split(places, num_folds)):
            fold_of[part] = fold
    accuracies = []
    for fold in range(num_folds):
        others = fold_of != fold
        best = max(
            [np.inf, *similarity[others]],
            key=lambda threshold: (np.sum((similarity[others] >= threshold) == same[others]), threshold),
        )
        accuracies.append(np.mean((similarity[~others] >= best) == same[~others]))
    return np.mean(accuracies), np.std(accuracies)


@pytest.mark.parametrize("separation", [0.0, 1.0, 5.0])
def test_verification_is_what_trying_every_threshold_gives(separation):
    rng = np.random.default_rng(0)
    same = np.arange(120) % 2 == 0
    # Rounded, so that there are equal ones.
    similarity = (rng.normal(size=120) + separation * same).round(1)
    for folds in (3, 10):
        expected = by_trying(similarity, same, folds)
        assert verification(similarity, same, num_folds=folds) == pytest.approx(expected)
    if separation == 5:
        assert verification(similarity, same).mean > 0.97


def test_a_threshold_is_not_chosen_on_what_it_is_measured_on():
    # Each fold alone could be told apart, by a threshold that is wrong for the others.
    similarity = np.repeat([0.0, 10.0], 4) + np.tile([1.0, 0.0], 4)
    same = np.tile([True, False], 4)
    assert verification(similarity, same, num_folds=2).mean == 0.5


def test_rank_1_is_what_comparing_all_gives():
    rng = np.random.default_rng(0)
    probes, noise = rng.normal(size=(2, 1500, 8)).astype(np.float32)
    mates, distractors = probes + 0.7 * noise, rng.normal(size=(3000, 8)).astype(np.float32)
    best = [
        max(distractors @ probe / np.linalg.norm(distractors, axis=1)) < probe @ mate / np.linalg.norm(mate)
        for probe, mate in zip(probes, mates, strict=True)
    ]
    assert 0.1 < np.mean(best) < 0.9
    assert rank_1(probes, mates, distractors) == pytest.approx(np.mean(best))
    # Lengths mean nothing.
    scaled = rank_1(probes * 5, mates * rng.uniform(1, 9, (1500, 1)).astype(np.float32), distractors * 100)
    assert scaled == pytest.approx(np.mean(best))


def test_a_model_that_gives_one_embedding_for_all_identifies_nobody():
    for seed in range(8):
        same = np.repeat(np.random.default_rng(seed).normal(size=(1, 64)).astype(np.float32), 9, axis=0)
        assert rank_1(same, same, same) == 0


def test_cosines_of_nothing_are_zero():
    assert cosines(np.zeros((1, 2)), np.ones((1, 2))).tolist() == [0]


def test_what_is_wrong_is_said():
    some, none = np.ones((2, 3), np.float32), np.ones((0, 3), np.float32)
    for given, missing in (((some, some, none), "distractors"), ((none, none, some), "probes")):
        with pytest.raises(ValueError, match=f"expected {missing}, got none"):
            rank_1(*given)
    with pytest.raises(ValueError, match="2 <= num_folds <= 3"):
        verification(np.zeros(8), np.arange(8) < 3, num_folds=4)
