"""Exact scores over classes that are sharded over devices: each device ranks its own, and the best are merged."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from candax.base import Classes
from candax.blocks import accumulator_dtype, streaming_evaluate
from candax.cosines import as_scored


def mesh_of(classes: Classes) -> Mesh | None:
    """The mesh over whose one axis the class rows are sharded; None where they are on one device, or are NumPy."""
    sharding = getattr(classes.vectors, "sharding", None)
    if not isinstance(sharding, NamedSharding) or sharding.mesh.size == 1 or not sharding.spec or not sharding.spec[0]:
        return None
    assert isinstance(sharding.mesh, Mesh)
    return sharding.mesh


@partial(jax.jit, static_argnames=("mesh", "k", "block_size"))
def evaluate_sharded(
    embeddings: Float[Array, "B dim"], classes: Classes, *, mesh: Mesh, k: int, block_size: int
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Float[Array, "B"]]:
    """``streaming_evaluate`` of classes whose rows are sharded over the one axis of ``mesh``.

    Args:
        embeddings: one row an example.
        classes: the output layer; its rows are a multiple of the number of devices.
        mesh: of one axis.
        k: how many classes an example.
        block_size: the most classes that a device scores at a time.

    Returns:
        As ``streaming_evaluate``, on every device.
    """
    (axis,) = mesh.axis_names

    def body(embeddings: Array, vectors: Array, biases: Array | None, num_valid: Array) -> tuple[Array, Array, Array]:
        first = jax.lax.axis_index(axis) * vectors.shape[0]
        own = Classes(vectors, biases, None, jnp.clip(num_valid - first, 0, vectors.shape[0]), classes.normalized)
        scores, ids, log_normalizer = streaming_evaluate(embeddings, own, k, block_size=block_size)
        return scores, jnp.where(scores > -jnp.inf, ids + first, 0), log_normalizer[:, None]

    everywhere, over_rows, side_by_side = PartitionSpec(), PartitionSpec(axis), PartitionSpec(None, axis)
    specs = (everywhere, over_rows, over_rows, everywhere)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=side_by_side, check_vma=False)
    scores, ids, log_normalizers = mapped(embeddings, classes.vectors, classes.biases, classes.num_valid)
    # Devices are in the order of the ids, so that of equal scores the lower id still comes first.
    scores, at = jax.lax.top_k(scores, k)
    ids = jnp.take_along_axis(ids, at, axis=1)
    found = scores, ids, jax.nn.logsumexp(log_normalizers, axis=1)
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, everywhere))


@partial(jax.jit, static_argnames="mesh")
def pair_logits_sharded(
    embeddings: Float[Array, "B dim"], classes: Classes, rows: Int[Array, "P"], ids: Int[Array, "P"], *, mesh: Mesh
) -> Float[Array, "P"]:
    """The logits of pairs (example, class), each from the device that has the class."""
    (axis,) = mesh.axis_names
    dtype = accumulator_dtype(embeddings, classes)

    def body(embeddings: Array, vectors: Array, biases: Array | None, rows: Array, ids: Array) -> Array:
        local = ids - jax.lax.axis_index(axis) * vectors.shape[0]
        mine = (local >= 0) & (local < vectors.shape[0])
        at = jnp.where(mine, local, 0)
        left, right = (as_scored(part, classes.normalized).astype(dtype) for part in (embeddings[rows], vectors[at]))
        logits = jnp.sum(left * right, axis=1)
        return jnp.where(mine, logits if biases is None else logits + biases[at], 0.0)[None]

    everywhere, over_rows = PartitionSpec(), PartitionSpec(axis)
    specs = (everywhere, over_rows, over_rows, everywhere, everywhere)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=over_rows, check_vma=False)
    logits = jnp.sum(mapped(embeddings, classes.vectors, classes.biases, rows, ids), axis=0)
    return jax.lax.with_sharding_constraint(logits, NamedSharding(mesh, everywhere))
