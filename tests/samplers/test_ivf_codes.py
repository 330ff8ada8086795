"""One-bit codes: packing, distances, and the estimator of rotated codes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.cosines import unit
from candax.samplers.ivf.codes import Codebook, Coder, hamming

WIDTH = 40


def vectors_of(number, seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(number, WIDTH)), jnp.float32)


def test_mean_codes_and_their_distance_by_hand():
    coder = Coder("mean", query_bits=4)
    classes, queries = vectors_of(6, 0) + 1.0, vectors_of(2, 1) + 1.0
    mean = jnp.mean(unit(classes), axis=0)
    book = Codebook(mean, None, None)
    codes = coder.encode(book, classes, classes, None)
    assert codes.shape == (6, coder.record(WIDTH, has_bias=True))
    bits = np.asarray(unit(classes)) > np.asarray(mean)
    asked = coder.ask(book, queries)
    query_bits = np.asarray(unit(queries)) > np.asarray(mean)
    by_block = codes.reshape(3, 2, -1).swapaxes(1, 2)
    for query in range(2):
        wanted = (bits != query_bits[query]).sum(axis=1)
        np.testing.assert_array_equal(hamming(by_block, asked.planes[query]).reshape(-1), wanted)
        valid = jnp.array([[True, True], [True, False], [False, True]])
        keys, num_bits = coder.sort_keys(by_block, valid, asked.planes[query], asked.step[query], jnp.zeros(3), WIDTH)
        assert np.all(np.asarray(keys)[np.asarray(valid)] == wanted[np.asarray(valid).reshape(-1)])
        assert np.all(np.asarray(keys)[~np.asarray(valid)] > WIDTH)
        assert int(keys.max()) < 2**num_bits


def test_bit_planes_weigh_twice_as_much_each():
    codes = jnp.array([[[0b0110, 0b1111]]], jnp.uint32)
    planes = jnp.array([[0b0000], [0b0111]], jnp.uint32)
    assert hamming(codes, planes).tolist() == [[2 + 2 * 1, 4 + 2 * 1]]


@pytest.mark.parametrize("query_bits", [1, 4, 8])
def test_a_query_is_its_planes_up_to_half_a_step(query_bits):
    coder = Coder("rotated", query_bits)
    book, queries = coder.new(jax.random.key(0), WIDTH), vectors_of(3, 0)
    asked = coder.ask(book, queries)
    bits = (np.asarray(asked.planes)[..., None] >> np.arange(32)) & 1
    signs = 2.0 * bits.reshape(3, query_bits, -1)[..., :WIDTH] - 1
    again = np.einsum("bpw,p->bw", signs, 2.0 ** np.arange(query_bits)) * np.asarray(asked.step)[:, None]
    # Rounded up or down to odd multiples of the step: nearer than two steps.
    assert np.all(np.abs(again - np.asarray(queries)) <= 2 * np.asarray(asked.step)[:, None] * (1 + 1e-5))


def test_the_rotated_estimate_is_unbiased():
    """Of the inner products of 5 queries and 4 classes, over rotations and roundings."""
    coder = Coder("rotated", query_bits=4)
    queries, keys = vectors_of(5, 2), 3.0 * vectors_of(4, 3)
    centers = unit(keys + 2.0 * vectors_of(4, 4))
    biases = jnp.array([0.5, -1.0, 0.0, 2.0])

    def once(key):
        book = coder.new(key, WIDTH)
        turned = coder.turn(book, centers)
        codes = coder.encode(book, coder.turn(book, keys), turned, biases)[:, :, None]
        q = coder.turn(book, queries)
        asked = coder.ask(book, q)
        of_query = jax.vmap(lambda p, s, c: coder.estimate(codes, p, s, c, WIDTH)[:, 0])
        return of_query(asked.planes, asked.step, q @ turned.T)

    number = 3000
    found = np.asarray(jax.jit(jax.vmap(once))(jax.random.split(jax.random.key(1), number)), np.float64)
    truth = np.asarray(queries @ keys.T + biases, np.float64)
    error = found.std(axis=0) / np.sqrt(number)
    assert np.all(5 * error < 0.05 * np.abs(truth).max())
    assert np.all(np.abs(found.mean(axis=0) - truth) < 5 * error)
    # Without the correction for what one bit loses of a coordinate, the part beside the centre is too small.
    along = np.asarray((queries @ centers.T) * jnp.sum(keys * centers, axis=1) + biases, np.float64)
    wrong = along + np.sqrt(2 / np.pi) * (found.mean(axis=0) - along)
    assert np.any(np.abs(wrong - truth) > 5 * error)


def test_rotations_are_orthogonal_and_keep_zero_vectors_harmless():
    coder = Coder("rotated", query_bits=4)
    book = coder.new(jax.random.key(0), WIDTH)
    np.testing.assert_allclose(book.rotation @ book.rotation.T, np.eye(WIDTH), atol=1e-5)
    zero = jnp.zeros((1, WIDTH))
    codes = coder.encode(book, zero, unit(vectors_of(1, 0)), None)[:, :, None]
    asked = coder.ask(book, zero)
    assert float(coder.estimate(codes, asked.planes[0], asked.step[0], jnp.ones(1), WIDTH)[0, 0]) == 0.0
