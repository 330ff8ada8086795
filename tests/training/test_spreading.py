"""What is numbered within one process's part of a batch is numbered anew over all, or refused by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType

import candax as cx
from candax.training import spreading

MESH = jax.make_mesh((1,), ("classes",), axis_types=(AxisType.Auto,))


def test_each_block_of_pairs_is_of_the_process_that_gave_it(monkeypatch):
    """Two processes whose devices take turns along the mesh: blocks 0 and 2 are of one, 1 and 3 of the other."""
    monkeypatch.setattr(spreading, "_blocks", lambda mesh, axes: np.array([[0, 2], [1, 3], [0, 2], [1, 3]], np.int32))
    head = cx.Head(40, 4, sampler=cx.samplers.uniform(8), mesh=MESH, rngs=nnx.Rngs(0))
    given = jnp.array([0, 5, 0, 5, 3, -1, 4, 6])  # parts have 6 predictions each
    pairs = jnp.stack([given, jnp.arange(8)], axis=1)
    found = spreading.renumbered(head, pairs, 12)
    assert found[:, 0].tolist() == [0, 8, 3, 11, 6, -1, 10, 12]  # 12: out of range
    assert found[:, 1].tolist() == list(range(8))


def test_what_numbers_the_examples_of_one_process_is_refused(monkeypatch):
    head = cx.Head(40, 4, sampler=cx.samplers.uniform(8), mesh=MESH, rngs=nnx.Rngs(0))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    pairs = np.zeros((1, 2), np.int32)
    with pytest.raises(ValueError, match=r"without feature_examples with 2 processes.*Batches without flat=True"):
        spreading.spread(head, MESH, {"feature_examples": np.zeros(3, np.int32)}, renumbers=True)
    with pytest.raises(ValueError, match="without more_labels with 2 processes and a loss_fn of your own"):
        spreading.spread(head, MESH, {"more_labels": pairs}, renumbers=False)
