"""Generated identities: functions of their numbers alone, hard to tell by distance, each visited once an epoch."""

import dataclasses

import numpy as np
import pytest

from candax.data import Identities, IdentityBatches

IDENTITIES = Identities(num_features=24, manifold_dim=6, nuisance_dim=8)


def test_a_sample_does_not_depend_on_what_else_is_asked_for():
    ids, samples = np.array([3, 10**9, 3, 0]), np.array([0, 5, 1, 0])
    together = IDENTITIES.inputs(ids, samples)
    alone = np.concatenate([IDENTITIES.inputs(ids[i : i + 1], samples[i : i + 1]) for i in range(4)])
    np.testing.assert_allclose(together, alone, rtol=1e-5, atol=1e-6)
    assert len(np.unique(together.round(3), axis=0)) == 4
    other = dataclasses.replace(IDENTITIES, seed=1).inputs(ids, samples)
    assert np.abs(together - other).max(axis=1).min() > 0.1


def test_numbers_are_standard_normal_and_independent():
    # Without a map in between: noise alone.
    ids = np.arange(4000)
    quiet, noisy = (
        dataclasses.replace(IDENTITIES, noise=noise).inputs(ids, np.zeros(4000, np.int64)) for noise in (0.0, 1.0)
    )
    noise = (noisy - quiet).astype(np.float64)
    tolerance = 5 / np.sqrt(4000)
    np.testing.assert_allclose(noise.mean(axis=0), 0, atol=tolerance)
    np.testing.assert_allclose(np.cov(noise.T), np.eye(24), atol=1.5 * tolerance)
    assert abs(np.mean(noise**4) - 3) < 0.2


def test_nuisance_hides_identities():
    ids = np.arange(500)
    zeros = np.zeros(500, np.int64)
    shares = []
    for nuisance in (0.0, 2.0):
        identities = dataclasses.replace(IDENTITIES, nuisance=nuisance, noise=0.05)
        first, second = identities.inputs(ids, zeros), identities.inputs(ids, zeros + 1)
        distance = np.sum((first[:, None] - second) ** 2, axis=2)
        shares.append(np.mean(np.argmin(distance, axis=1) == ids))
    assert shares[0] > 0.95
    assert shares[1] < 0.1


@pytest.mark.parametrize(("num_classes", "samples_per_class"), [(7, 3), (64, 4), (1, 1)])
def test_an_epoch_visits_every_sample_once_in_an_order_of_its_own(num_classes, samples_per_class):
    size = num_classes * samples_per_class
    batches = IdentityBatches(
        IDENTITIES, num_classes=num_classes, samples_per_class=samples_per_class, batch_size=1, seed=0
    )
    orders = []
    for epoch in range(2):
        inputs = np.concatenate([batches[epoch, i].inputs for i in range(size)])
        labels = np.concatenate([batches[epoch, i].labels[:, 0] for i in range(size)])
        assert np.bincount(labels).tolist() == [samples_per_class] * num_classes
        assert len(np.unique(inputs.round(4), axis=0)) == size
        orders.append(labels.tolist())
    assert size == 1 or orders[0] != orders[1]


def test_batches_are_functions_of_their_position():
    batches = IdentityBatches(IDENTITIES, num_classes=10**6, samples_per_class=10, batch_size=64, seed=3)
    again = IdentityBatches(IDENTITIES, num_classes=10**6, samples_per_class=10, batch_size=64, seed=3)
    one, same, other = batches[4, 99], again[4, 99], batches[4, 98]
    np.testing.assert_array_equal(one.inputs, same.inputs)
    assert one.labels.dtype == np.int32
    assert one.labels.shape == (64, 1)
    assert (one.labels != other.labels).any()
    # Spread over all classes, not a run of them.
    assert one.labels.max() - one.labels.min() > 8e5
    with pytest.raises(IndexError, match="index from 0 to"):
        batches[0, batches.batches_per_epoch]


def test_other_identities_of_hard_pairs_are_near():
    easy, hard = (IDENTITIES.pairs(400, first=10**6, among=among) for among in (1, 50))
    assert easy.same.tolist() == [True, False] * 200
    apart = [np.sum((p.left - p.right)[~p.same] ** 2, axis=1).mean() for p in (easy, hard)]
    assert apart[1] < 0.85 * apart[0]
    alike = [np.sum((p.left - p.right)[p.same] ** 2, axis=1).mean() for p in (easy, hard)]
    assert abs(alike[1] / alike[0] - 1) < 0.15


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="noise of 0 or more"):
        Identities(noise=-1.0)
    with pytest.raises(ValueError, match="batch_size from 1 to 6"):
        IdentityBatches(IDENTITIES, num_classes=2, samples_per_class=3, batch_size=7, seed=0)
