"""Hash families: closed forms against simulation, invariances, packing, folding and borrowing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.samplers.lsh import codes
from candax.samplers.lsh.codes import Hasher, fold, log_not_found, mix, pack
from candax.samplers.lsh.dwta import dwta, dwta_collision
from candax.samplers.lsh.simhash import simhash, simhash_collision

FUNCTIONS = 50_000
PAIRS = 12


def pairs(dim: int, *, ties: bool = False) -> tuple[jax.Array, jax.Array]:
    """Vectors from alike to opposite."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(PAIRS, dim))
    y = np.linspace(1, -1, PAIRS)[:, None] * x + 0.5 * rng.normal(size=(PAIRS, dim))
    if ties:
        x, y = np.maximum(np.round(x), 0), np.maximum(np.round(y), 0)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def of_pairs(log_collision, x, y):
    """Probabilities of the pairs (x_i, y_i)."""
    return np.exp(np.asarray(log_collision(x[:, None], y[:, None])[:, 0, 0], np.float64))


def collision_rate(family, x, y, num_functions=FUNCTIONS):
    parameters = family.init(jax.random.key(4), x.shape[1], num_functions)
    return np.mean(np.asarray(family.values(parameters, x) == family.values(parameters, y)), axis=1)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(
    ("family", "dim"),
    [(simhash(), 7), (dwta(2), 6), (dwta(4), 9), (dwta(8), 16), (dwta(4, permutations="one"), 9)],
    ids=["simhash", "dwta 2", "dwta 4", "dwta 8", "dwta one permutation"],
)
def test_collision_probability_is_what_simulation_says(family, dim, ties):
    x, y = pairs(dim, ties=ties)
    p = of_pairs(family.log_collision, x, y)
    rate = collision_rate(family, x, y)
    stderr = np.sqrt(p * (1 - p) / FUNCTIONS)
    assert np.all(np.abs(rate - p) <= 5 * stderr + 1e-6)
    assert np.ptp(p) > 0.3, "pairs too alike to tell formulas apart"
    # The planted faults: one coordinate less in the bin, or twice the angle, is far outside.
    assert not np.all(np.abs(rate - p**1.05) <= 5 * stderr + 1e-6)


def test_collision_is_exact_for_equal_opposite_and_zero_vectors():
    x = jnp.array([[0.3, -1e-20, 4.0, 1e19], [1e-30, 2e-30, 0.0, -3e-30], [0.0, 0.0, 0.0, 0.0]])
    found = np.exp(np.asarray(simhash_collision(x, x)))
    np.testing.assert_array_equal(np.diag(found), 1.0)
    np.testing.assert_allclose(found[2, :2], 0.5, rtol=1e-6)
    np.testing.assert_array_equal(np.diag(simhash_collision(x, -2 * x))[:2], -np.inf)
    found = np.exp(np.asarray(dwta_collision(x, x, 2)))
    np.testing.assert_allclose(np.diag(found), 1.0, rtol=1e-6)
    order = jnp.arange(4.0)[None]
    np.testing.assert_array_equal(dwta_collision(order, -order, 2), -np.inf)


def test_dwta_in_many_dimensions_is_the_combinatorial_sum():
    from scipy.special import comb

    x, y = (np.asarray(part, np.float64) for part in pairs(128))
    less = (x[:, None, :] < x[:, :, None]) & (y[:, None, :] < y[:, :, None])
    wanted = np.sum(comb(less.sum(axis=-1), 7), axis=-1) / comb(128, 8)
    x, y = (jnp.asarray(part, jnp.float32) for part in (x, y))
    found = of_pairs(lambda x, y: dwta_collision(x, y, 8), x, y)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("permutations", ["independent", "one"])
def test_dwta_values_do_not_change_under_increasing_maps(sparse, permutations):
    family = dwta(4, sparse=sparse, permutations=permutations)
    x, _ = pairs(32, ties=True)
    parameters = family.init(jax.random.key(5), 32, 60)
    values = family.values(parameters, x)
    for increasing in (lambda v: 3 * v, jnp.arctan, lambda v: v**3 + v):
        np.testing.assert_array_equal(family.values(parameters, increasing(x)), values)
    assert np.any(np.asarray(family.values(parameters, -x)) != np.asarray(values))


def test_one_permutation_cuts_disjoint_bins():
    bins = np.asarray(dwta(4, permutations="one").init(jax.random.key(6), 19, 10).coordinates)
    assert len(set(bins[:4].ravel())) == 16  # the first permutation: four bins of 19 coordinates
    assert len(set(bins[4:8].ravel())) == 16
    assert np.all(np.diff(bins, axis=1) > 0)


def test_empty_bins_borrow_from_filled_ones():
    family = dwta(8, sparse=True)
    functions = 40
    parameters = family.init(jax.random.key(7), 400, functions)
    rng = np.random.default_rng(8)
    x = np.zeros((6, 400), np.float32)
    for row in x[:5]:
        row[rng.choice(400, 9, replace=False)] = rng.normal(size=9)  # negative numbers count too
    values = np.asarray(family.values(parameters, jnp.asarray(x)))
    in_bins = x[:, np.asarray(parameters.coordinates)]
    filled = (in_bins != 0).any(axis=-1)
    own = np.where(in_bins != 0, in_bins, -np.inf).argmax(axis=-1)
    assert 0.05 < filled[:5].mean() < 0.5
    np.testing.assert_array_equal(values[filled], own[filled])
    for row in range(5):
        assert set(values[row]) == set(own[row][filled[row]]), "borrowed from an empty bin"
    assert np.all(values[5] == 0)
    # The same bin borrows from the same lender: equal filled bins give equal codes.
    np.testing.assert_array_equal(family.values(parameters, jnp.asarray(2 * x)), values)


def test_sparse_vectors_meet_more_often_the_more_alike_they_are():
    family = dwta(4, sparse=True)
    rng = np.random.default_rng(9)
    there = rng.random((1, 200)) < 0.2
    x = np.where(there, rng.normal(size=(1, 200)) + 3, 0)
    others = np.concatenate([x * (1 + share * rng.normal(size=x.shape)) for share in (0.0, 0.02, 0.1, 1.0)])
    rate = collision_rate(family, jnp.asarray(x, jnp.float32), jnp.asarray(others, jnp.float32), 4000)
    assert rate[0] == 1
    assert np.all(np.diff(rate) < 0)


def test_packing_does_not_overlap():
    values = jnp.asarray(np.random.default_rng(0).integers(0, 8, (500, 3, 6)), jnp.uint32)
    codes = np.asarray(pack(values, 3))
    assert codes.shape == (500, 3)
    for k in range(6):
        np.testing.assert_array_equal((codes >> (3 * k)) & 7, values[:, :, k])
    with pytest.raises(ValueError, match="32 bits"):
        pack(values, 6)


def test_folding_shares_buckets_with_one_chance_in_their_number():
    salts = jax.random.bits(jax.random.key(1), (100_000,))
    codes = jnp.arange(12, dtype=jnp.uint32)[:, None] * jnp.ones((1, salts.shape[0]), jnp.uint32)
    folded = np.asarray(fold(codes, salts, 4, 8))
    assert folded.max() == 7
    np.testing.assert_array_equal(fold(codes, salts, 4, 16), codes)
    for other in range(1, 12):
        rate = np.mean(folded[0] == folded[other])
        assert rate == pytest.approx(1 / 8, abs=5 * np.sqrt(7 / 64 / salts.shape[0]) + 0.001)


def test_mix_is_a_bijection_on_what_it_is_shown():
    assert len(np.unique(np.asarray(mix(jnp.arange(1 << 16, dtype=jnp.uint32))))) == 1 << 16


def test_inclusion_at_the_edges():
    log_same = jnp.array([0.0, -jnp.inf, jnp.log(0.25), -40.0])
    found = -np.expm1(np.asarray(log_not_found(log_same, 2)))
    np.testing.assert_allclose(found, [1.0, 0.0, 1 - 0.75**2, 2 * np.exp(-40.0)], rtol=1e-5)
    np.testing.assert_array_equal(np.asarray(log_not_found(log_same, 0)), 0.0)


@pytest.mark.parametrize("family", [simhash(), dwta(4)])
@pytest.mark.parametrize("num_buckets", [256, 64])
def test_two_vectors_share_a_bucket_as_often_as_stated(family, num_buckets):
    hasher = Hasher(family, num_hashes=8 if family.num_bits == 1 else 4, num_tables=10_000, num_buckets=num_buckets)
    x, y = pairs(9)
    parameters = hasher.init(jax.random.key(2), 9)
    together = np.asarray(hasher.buckets(parameters, x) == hasher.buckets(parameters, y)).mean(axis=1)
    p = of_pairs(hasher.log_same_bucket, x, y)
    assert np.all(np.abs(together - p) <= 5 * np.sqrt(p * (1 - p) / hasher.num_tables) + 0.001)


def test_blocks_of_rows_change_nothing(monkeypatch):
    vectors = jnp.asarray(np.random.default_rng(0).normal(size=(1000, 4)), jnp.float32)
    hasher = Hasher(simhash(), num_hashes=3, num_tables=2, num_buckets=8)
    parameters = hasher.init(jax.random.key(0), 4)

    def of_ids(rows, start):
        return rows * jnp.cos(start + jnp.arange(rows.shape[0]))[:, None]

    def buckets():
        into = jnp.zeros((1000, 2), jnp.uint32)
        return np.asarray(hasher.buckets_into(parameters, vectors, into, 900, of_ids))

    whole = buckets()
    monkeypatch.setattr(codes, "_SCRATCH", 256 * hasher.family.scratch(4, 6))
    np.testing.assert_array_equal(buckets(), whole)
    assert whole[:900].max() < 8
    np.testing.assert_array_equal(whole[900:], 8)
