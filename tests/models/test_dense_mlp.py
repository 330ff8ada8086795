"""The perceptron on dense inputs."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx


def test_it_is_a_perceptron():
    encoder = cx.models.DenseMLP(3, (5, 4), 2, rngs=nnx.Rngs(0))
    inputs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    hidden = inputs
    for number, layer in enumerate(encoder.layers):
        hidden = hidden @ np.asarray(layer.kernel[...]) + np.asarray(layer.bias[...])
        hidden = np.maximum(hidden, 0) if number < 2 else hidden
    found = encoder(SimpleNamespace(inputs=jnp.asarray(inputs)))
    np.testing.assert_allclose(found, hidden, rtol=1e-5, atol=1e-6)
    assert (np.asarray(found) < 0).any()


def test_widths_are_checked():
    with pytest.raises(ValueError, match="expected each width to be"):
        cx.models.DenseMLP(3, (0,), 2, rngs=nnx.Rngs(0))
