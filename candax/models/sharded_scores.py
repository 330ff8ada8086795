"""Exact scores over classes that are sharded over devices: each device ranks its own, and the best are merged."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from candax.base import Classes
from candax.blocks import Transform, streaming_evaluate


def mesh_of(classes: Classes) -> tuple[Mesh, str] | None:
    """The mesh and its axis over which the class rows are sharded; None where they are on one device, or are NumPy."""
    sharding = getattr(classes.vectors, "sharding", None)
    if not isinstance(sharding, NamedSharding) or not sharding.spec or not isinstance(sharding.spec[0], str):
        return None
    assert isinstance(sharding.mesh, Mesh)
    return None if sharding.mesh.shape[sharding.spec[0]] == 1 else (sharding.mesh, sharding.spec[0])


@partial(jax.jit, static_argnames=("mesh", "axis", "k", "block_size", "transform"))
def evaluate_sharded(
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    *,
    mesh: Mesh,
    axis: str,
    k: int,
    block_size: int,
    transform: Transform | None = None,
    exclude: Int[Array, "B E"] | None = None,
) -> tuple[Float[Array, "B k"], Int[Array, "B k"], Float[Array, " B"]]:
    """``streaming_evaluate``, with its arguments, of classes whose rows lie over one axis of a mesh.

    The rows are a multiple of the number of devices, each of which scores ``block_size`` classes at a time at most. The
    results are on every device.
    """

    def body(
        embeddings: Array, vectors: Array, biases: Array | None, num_valid: Array, exclude: Array | None
    ) -> tuple[Array, Array, Array]:
        rows = vectors.shape[0]
        first = jax.lax.axis_index(axis) * rows
        own = Classes(vectors, biases, None, jnp.clip(num_valid - first, 0, rows), classes.normalized)
        if exclude is not None:
            local = exclude - first
            exclude = jnp.where((exclude >= 0) & (local >= 0) & (local < rows), local, -1)
        scores, ids, log_normalizer = streaming_evaluate(
            embeddings, own, k, block_size=block_size, transform=transform, exclude=exclude
        )
        return scores, jnp.where(scores > -jnp.inf, ids + first, 0), log_normalizer[:, None]

    everywhere, over_rows, side_by_side = PartitionSpec(), PartitionSpec(axis), PartitionSpec(None, axis)
    specs = (everywhere, over_rows, over_rows, everywhere, everywhere)
    mapped = jax.shard_map(body, mesh=mesh, in_specs=specs, out_specs=side_by_side, check_vma=False)
    scores, ids, log_normalizers = mapped(embeddings, classes.vectors, classes.biases, classes.num_valid, exclude)
    # Devices are in the order of the ids, so that of equal scores the lower id still comes first.
    scores, at = jax.lax.top_k(scores, k)
    ids = jnp.take_along_axis(ids, at, axis=1)
    found = scores, ids, jax.nn.logsumexp(log_normalizers, axis=1)
    return jax.lax.with_sharding_constraint(found, NamedSharding(mesh, everywhere))
