"""The smallest of many integers and the largest scores, without sorting."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.samplers.common.selection import best_first, pack_bits, positions_of_set_bits, select_bit, smallest

many = jax.jit(jax.vmap(smallest, in_axes=(0, None, None)), static_argnums=(1, 2))


@pytest.mark.parametrize(("dtype", "num_bits", "n"), [(np.int16, 7, 300), (np.int16, 14, 257), (np.uint32, 32, 128)])
@pytest.mark.parametrize("num", [1, 31, 128])
def test_the_smallest_and_of_equal_ones_the_first(dtype, num_bits, n, num):
    rng = np.random.default_rng(num)
    keys = rng.integers(0, 2**num_bits, size=(5, n)).astype(dtype)
    keys[1] = rng.integers(0, 3, size=n)  # many ties
    keys[2] = 2**num_bits - 1  # all equal, and the largest
    keys[3, ::2] = 0
    found = np.asarray(many(keys, num, num_bits))
    wanted = np.sort(np.argsort(keys, axis=1, kind="stable")[:, :num], axis=1)
    np.testing.assert_array_equal(found, wanted)


def test_places_of_set_bits_of_a_word():
    words = np.append(np.random.default_rng(0).integers(0, 2**32, 50), [1, 2**31, 2**32 - 1]).astype(np.uint32)
    found = jax.vmap(select_bit, in_axes=(0, None))(
        jnp.asarray(np.repeat(words[:, None], 32, axis=1)), jnp.arange(32, dtype=jnp.int32)
    )
    for word, places in zip(words, np.asarray(found), strict=True):
        wanted = [i for i in range(32) if int(word) >> i & 1]
        assert places[: len(wanted)].tolist() == wanted


def test_packing_and_finding_bits_again():
    bits = np.random.default_rng(0).random((3, 70)) < 0.4
    words = pack_bits(jnp.asarray(bits))
    assert words.shape == (3, 3)
    for word, row in zip(np.asarray(words), bits, strict=True):
        number = int(sum(int(w) << (32 * i) for i, w in enumerate(word)))
        assert number == sum(1 << int(i) for i in np.flatnonzero(row))
        found = positions_of_set_bits(jnp.asarray(word), int(row.sum()))
        np.testing.assert_array_equal(found, np.flatnonzero(row))


def test_impossible_requests_are_refused():
    with pytest.raises(ValueError, match="num=3 of 2"):
        smallest(jnp.zeros(2, jnp.int16), 3, 4)
    with pytest.raises(ValueError, match="16 bits"):
        smallest(jnp.zeros(2, jnp.int16), 1, 16)


@pytest.mark.parametrize(("n", "k"), [(7, 7), (128, 100), (300, 1), (300, 130), (300, 300), (700, 513), (2000, 44)])
def test_the_largest_scores_are_those_of_top_k_in_its_order(n, k):
    scores = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    scores[1] = np.rint(scores[1]) + 0.0  # many ties
    scores[2] = -np.inf
    scores[3, ::2] = -np.inf
    ids = jnp.asarray(np.random.default_rng(0).permutation(5 * n).reshape(5, n).astype(np.int32))
    wanted, place = jax.lax.top_k(scores, k)
    found, which = jax.jit(best_first, static_argnums=2)(scores, ids, k)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(which, jnp.take_along_axis(ids, place, axis=1))
