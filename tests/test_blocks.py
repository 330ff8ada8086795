"""Streaming over class blocks equals the plain computation, and holds no [B, num_classes]."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax.base import Classes
from candax.blocks import (
    Block,
    block_starts,
    streaming_evaluate,
    streaming_log_normalizer,
    streaming_sample,
    streaming_top_k,
    walk,
)


def make(num_classes, num_valid=None, *, dim=16, batch=6, scale=1.0, biases=True, dtype=jnp.float32, seed=0):
    """Random embeddings and classes; rows that are no classes hold NaN."""
    rng = np.random.default_rng(seed)
    num_valid = num_classes if num_valid is None else num_valid
    vectors = rng.normal(size=(num_classes, dim))
    bias = rng.normal(size=num_classes)
    vectors[num_valid:] = np.nan
    bias[num_valid:] = np.nan
    embeddings = jnp.asarray(rng.normal(size=(batch, dim)) * scale, jnp.float32)
    classes = Classes(
        jnp.asarray(vectors, dtype), jnp.asarray(bias, jnp.float32) if biases else None, None, jnp.array(num_valid)
    )
    return embeddings, classes


def exact_logits(embeddings, classes):
    """float64 logits of the valid classes."""
    n = int(classes.num_valid)
    logits = np.asarray(embeddings, np.float64) @ np.asarray(classes.vectors, np.float64)[:n].T
    return logits if classes.biases is None else logits + np.asarray(classes.biases, np.float64)[:n]


def exact_log_normalizer(logits):
    largest = logits.max(axis=1)
    return largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))


CASES = {
    "one block": ({"num_classes": 50}, 8192),
    "divisible": ({"num_classes": 512}, 128),
    "not divisible": ({"num_classes": 1000}, 384),
    "odd block": ({"num_classes": 301}, 7),
    "padding rows": ({"num_classes": 1000, "num_valid": 870}, 200),
    "whole blocks of padding": ({"num_classes": 1000, "num_valid": 130}, 128),
    "bfloat16": ({"num_classes": 700, "dtype": jnp.bfloat16}, 256),
    "no biases": ({"num_classes": 700, "biases": False, "num_valid": 699}, 256),
    "large logits": ({"num_classes": 700, "scale": 80 / 16**0.5}, 256),
}


@pytest.mark.parametrize(("make_kwargs", "block_size"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("k", [1, 40])
def test_equals_plain_computation(make_kwargs, block_size, k):
    embeddings, classes = make(**make_kwargs)
    logits = exact_logits(embeddings, classes)
    scores, ids, log_normalizer = jax.jit(streaming_evaluate, static_argnums=2, static_argnames="block_size")(
        embeddings, classes, k, block_size=block_size
    )
    np.testing.assert_array_equal(ids, np.argsort(-logits, axis=1)[:, :k])
    np.testing.assert_allclose(scores, -np.sort(-logits, axis=1)[:, :k], rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(log_normalizer, exact_log_normalizer(logits), rtol=1e-5, atol=1e-5)
    assert scores.dtype == log_normalizer.dtype == jnp.float32
    assert ids.dtype == jnp.int32


def test_thin_wrappers_agree():
    embeddings, classes = make(500)
    scores, ids, log_normalizer = streaming_evaluate(embeddings, classes, 3, block_size=128)
    top_scores, top_ids = streaming_top_k(embeddings, classes, 3, block_size=128)
    np.testing.assert_array_equal(top_scores, scores)
    np.testing.assert_array_equal(top_ids, ids)
    np.testing.assert_array_equal(streaming_log_normalizer(embeddings, classes, block_size=128), log_normalizer)


@pytest.mark.parametrize("k", [3, 16, 64, 200])
@pytest.mark.parametrize("block_size", [100, 1000, 4096])
def test_ties_go_to_the_lower_id(k, block_size):
    """Integer logits with many ties, in every way the selection works: by runs, by thresholds and directly."""
    rng = np.random.default_rng(k)
    values = np.floor(rng.exponential(5, size=(4, 4500))).astype(np.float32)  # the higher the rarer
    classes = Classes(jnp.asarray(values.T), None, None, jnp.array(4500))
    scores, ids = streaming_top_k(jnp.eye(4), classes, k, block_size=block_size)
    expected_scores, expected_ids = jax.lax.top_k(jnp.asarray(values), k)
    np.testing.assert_array_equal(scores, expected_scores)
    np.testing.assert_array_equal(ids, expected_ids)


@pytest.mark.parametrize("falling", [True, False])
def test_top_k_of_sorted_scores(falling):
    """All of the best in the first block, and all of them in the last."""
    scores = np.arange(5000, dtype=np.float32)
    scores = scores[::-1].copy() if falling else scores
    classes = Classes(jnp.asarray(scores)[:, None], None, None, jnp.array(5000))
    _, ids = streaming_top_k(jnp.ones((2, 1)), classes, 100, block_size=1000)
    np.testing.assert_array_equal(ids[0], np.argsort(-scores)[:100])


@pytest.mark.parametrize("num_valid", [0, 3])
def test_more_wanted_than_valid(num_valid):
    embeddings, classes = make(40, num_valid)
    scores, ids, log_normalizer = streaming_evaluate(embeddings, classes, 64, block_size=16)
    assert np.isfinite(scores[:, :num_valid]).all()
    assert (np.asarray(scores[:, num_valid:]) == -np.inf).all()
    assert ((np.asarray(ids) >= 0) & (np.asarray(ids) < max(num_valid, 1))).all()
    if num_valid == 0:
        assert (np.asarray(log_normalizer) == -np.inf).all()
    else:
        expected = exact_log_normalizer(exact_logits(embeddings, classes))
        np.testing.assert_allclose(log_normalizer, expected, rtol=1e-5)


@pytest.mark.parametrize(("num_classes", "block_size"), [(1, 1), (10, 3), (257, 130), (1290, 256), (1025, 300)])
def test_every_class_is_fresh_once(num_classes, block_size):
    num_blocks, size = block_starts(num_classes, block_size)
    assert size <= block_size
    assert num_blocks == -(-num_classes // block_size)
    classes = Classes(jnp.ones((num_classes, 1)), None, None, jnp.array(num_classes))

    def visit(seen, block: Block):
        return seen.at[block.start + jnp.arange(size)].add(block.fresh)

    seen = walk(classes, jnp.dtype(jnp.float32), visit, jnp.zeros(num_classes, jnp.int32), block_size=block_size)
    np.testing.assert_array_equal(seen, 1)


def test_holds_one_block_of_logits():
    embeddings, classes = make(40_000, batch=64, dim=8)
    compiled = (
        jax.jit(streaming_evaluate, static_argnums=2, static_argnames="block_size")
        .lower(embeddings, classes, 5, block_size=1024)
        .compile()
    )
    all_logits = 64 * 40_000 * 4
    assert compiled.memory_analysis().temp_size_in_bytes < all_logits / 5


def test_wrong_sizes_are_refused():
    embeddings, classes = make(10)
    with pytest.raises(ValueError, match="block_size"):
        streaming_log_normalizer(embeddings, classes, block_size=0)
    with pytest.raises(ValueError, match="k is"):
        streaming_top_k(embeddings, classes, -1)


def test_a_class_can_be_drawn_against_odds_of_e_to_the_17():
    """Among 2^18 draws, with a key found by trial, one has noise of 18.7; noise with steps of 2^-23 ends at 15.9."""
    num_classes = 2**14
    likely = jnp.zeros(num_classes).at[-1].set(17.0)
    classes = Classes(jnp.zeros((num_classes, 1)), likely)
    ids = jax.jit(streaming_sample, static_argnames="block_size")(
        jax.random.key(711), jnp.zeros((16, 1)), classes, block_size=num_classes
    )
    assert sorted(ids.tolist())[:2] == [5889, num_classes - 1]


@pytest.mark.parametrize("k", [0, 1, 16])
def test_no_examples(k):
    embeddings, classes = make(5000, batch=0)
    scores, ids, log_normalizer = streaming_evaluate(embeddings, classes, k, block_size=2500)
    assert scores.shape == ids.shape == (0, k)
    assert log_normalizer.shape == streaming_sample(jax.random.key(0), embeddings, classes).shape == (0,)
