"""A digest is of all bits and their places, wherever the rows lie; a checkpoint with other arrays is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import candax as cx
from candax.training import digests as digests_module
from candax.training.checkpoints import Checkpoints
from candax.training.digests import digests


def of(array):
    return digests({"x": array})["x"]


@pytest.mark.parametrize(
    "dtype", [jnp.float32, jnp.bfloat16, jnp.int32, jnp.uint8, jnp.int8, jnp.bool_, jnp.int4, jnp.complex64]
)
def test_each_bit_and_each_place_count(dtype, monkeypatch):
    array = np.asarray(jax.random.bits(jax.random.key(0), (37, 5), jnp.uint8) % 2).astype(dtype)
    found = of(jnp.asarray(array))
    monkeypatch.setattr(digests_module, "_ELEMENTS", 20)  # in blocks of rows
    assert of(jnp.asarray(array)) == found
    others = {found}
    for place in [(0, 0), (36, 4), (17, 2)]:
        changed = array.copy()
        changed[place] = changed[place] == 0
        others.add(of(jnp.asarray(changed)))
    assert len(others) == 4
    assert of(jnp.asarray(array[::-1])) not in others
    assert of(jnp.asarray(array.T)) not in others
    assert of(jnp.zeros(3)) != of(-jnp.zeros(3))
    assert of(jnp.float32(1)) != of(jnp.float32(2))
    assert of(jnp.complex64(1)) != of(jnp.complex64(1j))


def test_the_same_on_any_mesh():
    array = jax.random.normal(jax.random.key(0), (64, 6))
    mesh = Mesh(np.array(jax.devices()[:8]), ("classes",))
    for spec in (PartitionSpec("classes"), PartitionSpec()):
        assert of(jax.device_put(array, NamedSharding(mesh, spec))) == of(array)


def test_arrays_of_complex_numbers_and_of_half_bytes_come_back(tmp_path):
    def make(factor):
        return nnx.Dict(a=nnx.Param(factor * jnp.array([1 + 2j, 3])), b=nnx.Variable(jnp.full(3, factor, jnp.int4)))

    saved, read = make(2), make(0)
    with Checkpoints(tmp_path, identity=None) as checkpoints:
        checkpoints.check(saved, None)
        checkpoints.save(1, saved, None, {})
        checkpoints.wait()
        checkpoints.restore(read, None)
    for name in saved:
        np.testing.assert_array_equal(read[name][...], saved[name][...])


def test_a_checkpoint_with_other_arrays_is_refused(tmp_path, monkeypatch):
    def make():
        head = cx.Head(20, 4, sampler=cx.samplers.uniform(3), rngs=nnx.Rngs(0))
        return head, cx.Optimizer(head, optax.sgd(0.1))

    with Checkpoints(tmp_path, identity={}) as checkpoints:
        checkpoints.save(1, *make(), {})
        checkpoints.wait()
        checkpoints.restore(*make())
        restore = checkpoints._manager.restore

        def torn(step, args):
            found = restore(step, args=args)
            if "state" in found.keys():  # noqa: SIM118 - of orbax, no dict
                found["state"]["model/vectors"] = found["state"]["model/vectors"][::-1]
            return found

        monkeypatch.setattr(checkpoints._manager, "restore", torn)
        with pytest.raises(
            ValueError, match=r"digest of model/vectors does not match.* go on from the checkpoint before"
        ):
            checkpoints.restore(*make())
