"""k-means, by directions and by distances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.samplers.common import kmeans as module
from candax.samplers.common.kmeans import Points, kmeans, nearest

DIM, CLUSTERS, EACH = 16, 12, 40


def mixture(seed=0):
    """Vectors of very different lengths round 12 directions, with the number of the direction."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(CLUSTERS, DIM))
    which = np.repeat(np.arange(CLUSTERS), EACH)
    vectors = centers[which] / np.linalg.norm(centers[which], axis=1, keepdims=True)
    vectors = (vectors + 0.05 * rng.normal(size=vectors.shape)) * np.exp(rng.normal(size=(len(which), 1)))
    return jnp.asarray(vectors, jnp.float32), which


def points_of(vectors, number=None):
    number = len(vectors) if number is None else number
    return Points(lambda ids: vectors[ids], jnp.int32(number), len(vectors))


def purity(centers, vectors, which):
    """1 where every cluster has one centre to itself."""
    assigned = np.asarray(nearest(centers, vectors)[0])
    counts = np.zeros((len(centers), CLUSTERS))
    np.add.at(counts, (assigned, which), 1)
    return counts.max(axis=1).sum() / len(which), len(np.unique(assigned))


@pytest.mark.parametrize("points_per_center", [1000, 8])
def test_the_clusters_of_a_mixture_are_found(points_per_center):
    vectors, which = mixture()
    run = jax.jit(lambda key: kmeans(key, points_of(vectors), CLUSTERS, points_per_center=points_per_center))
    centers = run(jax.random.key(1))
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1.0, rtol=1e-5)
    assert purity(centers, vectors, which) == (1.0, CLUSTERS)
    np.testing.assert_array_equal(centers, run(jax.random.key(1)))
    assert np.any(np.asarray(centers) != np.asarray(run(jax.random.key(2))))


def test_blocks_change_nothing(monkeypatch):
    vectors, _ = mixture()
    whole = kmeans(jax.random.key(1), points_of(vectors), CLUSTERS, num_iterations=3)
    monkeypatch.setattr(module, "rows_at_once", lambda num_centers: 77)
    np.testing.assert_allclose(
        kmeans(jax.random.key(1), points_of(vectors), CLUSTERS, num_iterations=3), whole, atol=1e-5
    )


def test_padding_points_are_never_looked_at():
    vectors, _ = mixture()
    padded = jnp.concatenate([vectors, jnp.full((50, DIM), jnp.nan)])
    whole = kmeans(jax.random.key(1), points_of(padded, len(vectors)), CLUSTERS)
    assert np.all(np.isfinite(whole))
    assert purity(whole, vectors, mixture()[1])[0] == 1.0


def test_a_center_without_points_starts_again():
    vectors, which = mixture()
    far = jnp.concatenate([jnp.tile(-vectors[:1], (4, 1)), vectors[:8], jnp.full((1, DIM), jnp.nan)])
    centers = kmeans(jax.random.key(3), points_of(vectors), 13, num_iterations=30, start=far)
    assert np.all(np.isfinite(centers))
    np.testing.assert_allclose(np.linalg.norm(centers, axis=1), 1.0, rtol=1e-5)
    assert purity(centers, vectors, which)[1] > 9, "centres nobody is near to must not stay there"


def test_fewer_distinct_points_than_centers():
    centers = kmeans(jax.random.key(0), points_of(jnp.tile(jnp.eye(DIM)[:3], (5, 1))), 6)
    assert np.all(np.isfinite(centers))
    assert len(np.unique(np.asarray(centers).argmax(axis=1))) == 3


@pytest.mark.parametrize("wrong", [{"num_iterations": 0}, {"points_per_center": 0}, {"start": "first"}])
def test_wrong_arguments_are_refused(wrong):
    with pytest.raises(Exception, match=next(iter(wrong))):
        kmeans(jax.random.key(0), points_of(jnp.eye(4)), 2, **wrong)


def test_by_distance_centres_are_means_and_lengths_count() -> None:
    rng = np.random.default_rng(0)
    means = np.array([[1.0, 0.0], [4.0, 0.0], [0.0, 0.0]])
    vectors = jnp.asarray(np.repeat(means, 30, axis=0) + 0.05 * rng.normal(size=(90, 2)), jnp.float32)
    points = Points(lambda ids: vectors[ids], jnp.int32(90), 90)
    for start in ("k-means++", "sampled"):
        centers = kmeans(jax.random.key(3), points, 3, spherical=False, start=start)
        which, _ = nearest(centers, vectors, spherical=False)
        wanted = np.argmin(np.sum((np.asarray(vectors)[:, None] - np.asarray(centers)) ** 2, axis=2), axis=1)
        np.testing.assert_array_equal(which, wanted)
    centers = kmeans(jax.random.key(0), points, 3, spherical=False)
    own = np.asarray(vectors).reshape(3, 30, 2).mean(axis=1)
    found = np.asarray(centers)[np.argsort(np.asarray(centers)[:, 0])]
    np.testing.assert_allclose(found, own[[2, 0, 1]], atol=1e-5)
