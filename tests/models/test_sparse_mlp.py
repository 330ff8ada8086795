"""``SparseMLP``: what dropout leaves out, and when."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx

BATCH = SimpleNamespace(feature_ids=jnp.array([[0, 3, -1]] * 200), feature_values=jnp.ones((200, 3)))


def test_dropout_leaves_out_coordinates_in_training_alone():
    rate, dim = 0.3, 50
    plain = cx.models.SparseMLP(5, dim, linear=True, rngs=nnx.Rngs(0))
    encoder = cx.models.SparseMLP(5, dim, linear=True, dropout=rate, rngs=nnx.Rngs(0))
    whole = np.asarray(plain(BATCH))
    first, second = np.asarray(encoder(BATCH)), np.asarray(encoder(BATCH))
    assert (first != second).any()
    # Six standard deviations.
    assert abs(np.mean(first == 0) - rate) < 6 * np.sqrt(rate * (1 - rate) / first.size)
    np.testing.assert_allclose(first[first != 0], whole[first != 0] / (1 - rate), rtol=1e-6)
    encoder.eval()
    np.testing.assert_array_equal(encoder(BATCH), whole)


def test_a_share_of_one_is_refused():
    with pytest.raises(ValueError, match=r"expected dropout of at least 0 and less than 1, got 1\.0"):
        cx.models.SparseMLP(5, 4, dropout=1.0, rngs=nnx.Rngs(0))
