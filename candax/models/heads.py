"""The head: owns the class vectors and scores only the rows that a loss needs."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, KeyArray, SampledLogits, labels_mask
from candax.rows import Constant, Table

# From about this many labels an example on, sorting them and searching is worth it. Measured on a CPU for 256 examples
# and 4096 shared candidates: comparing, fused into one pass, takes 1.9 ms at 64 labels and 3.9 at 128, sorting 8.6 and
# 10.
_SORT_FROM = 256
# Initial values are drawn at once up to so many of them, and beyond in about so many parts.
_AT_ONCE, _PARTS = 1 << 24, 128


class Head(nnx.Module):
    """The output layer: class vectors, biases, and what is known of the classes.

    Args:
        num_classes: classes of the output space.
        dim: coordinates of a class vector, those of the encoder's embeddings.
        use_biases: one bias a class, or none. Default: unless ``normalized``.
        counts: label frequencies [num_classes], for samplers that follow them.
        num_rows: rows of the table, padded beyond ``num_classes`` (to divide it over devices, say).
        dtype: of vectors and biases; logits are accumulated in float32.
        normalized: logits are the cosines of embeddings and class vectors, whatever their lengths, and there are no
            biases: the head that margins (``candax.losses.arcface``) are for.
        rngs: ``rngs.params`` initialises the vectors: normal with standard deviation 0.1 / sqrt(dim), so that logits
            start near 0 and rare classes are not led by their initial values; of a normalised head 1 / sqrt(dim), for
            an update turns a short vector further than a long one.

    Example:
        >>> from flax import nnx
        >>> import candax as cx
        >>> cx.models.Head(1000, 16, rngs=nnx.Rngs(0)).classes().vectors.shape
        (1000, 16)
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        use_biases: bool | None = None,
        counts: Float[Array | np.ndarray, "num_classes"] | None = None,
        num_rows: int | None = None,
        dtype: DTypeLike = jnp.float32,
        normalized: bool = False,
        rngs: nnx.Rngs,
    ) -> None:
        num_rows = num_classes if num_rows is None else num_rows
        if num_classes < 1 or dim < 1 or num_rows < num_classes:
            raise ValueError(
                "expected num_classes >= 1, dim >= 1 and num_rows >= num_classes, "
                f"got {num_classes}, {dim} and {num_rows}."
            )
        if normalized and use_biases:
            raise ValueError("expected no biases with normalized=True, whose logits are cosines: leave use_biases out.")
        if counts is not None and counts.shape != (num_classes,):
            raise ValueError(f"expected counts of shape ({num_classes},), one a class, got {counts.shape}.")
        self.num_classes = num_classes
        self.normalized = normalized
        length = 1.0 if normalized else 0.1
        self.vectors = Table(normal_table(rngs.params(), (num_rows, dim), length / dim**0.5, jnp.dtype(dtype)))
        use_biases = not normalized if use_biases is None else use_biases
        self.biases = Table(jnp.zeros(num_rows, dtype)) if use_biases else None
        padding = num_rows - num_classes
        self.counts = None if counts is None else Constant(jnp.pad(jnp.asarray(counts, jnp.float32), (0, padding)))

    def classes(self) -> Classes:
        """The output layer as samplers and full-softmax losses see it."""
        return Classes(
            vectors=self.vectors[...],
            biases=None if self.biases is None else self.biases[...],
            counts=None if self.counts is None else self.counts[...],
            num_valid=jnp.int32(self.num_classes),
            normalized=self.normalized,
        )


@partial(jax.jit, static_argnums=(1, 2, 3))
def normal_table(
    key: KeyArray, shape: tuple[int, int], deviation: float, dtype: np.dtype
) -> Float[Array, "num_rows dim"]:
    """Normal numbers, of large tables some columns at a time: bits and their transforms take several times the memory.

    By columns and not by rows, for rows may be sharded over devices.
    """
    num_rows, dim = shape

    def draw(key: KeyArray, columns: int) -> Array:
        return jax.random.normal(key, (num_rows, columns), dtype) * jnp.asarray(deviation, dtype)

    if num_rows * dim <= _AT_ONCE:
        return draw(key, dim)
    width = next(width for width in range(max(1, dim // _PARTS), 0, -1) if dim % width == 0)

    def body(part: Array, table: Array) -> Array:
        return lax.dynamic_update_slice(table, draw(jax.random.fold_in(key, part), width), (0, part * width))

    return lax.fori_loop(0, dim // width, body, jnp.zeros(shape, dtype))


def find_hits(labels: Int[Array, "B T"], ids: Int[Array, "G S"]) -> Bool[Array, "B S"]:
    """Which candidates of its group are labels of each example (labels pad with -1, candidate ids never do)."""
    groups, num_sampled = ids.shape
    batch_size, num_labels = labels.shape
    labels = labels.reshape(groups, batch_size // groups, num_labels)
    if num_labels < _SORT_FROM:
        hits = jnp.any(labels[:, :, :, None] == ids[:, None, None, :], axis=2)
    else:
        by_id = jnp.sort(labels, axis=-1)
        search = jax.vmap(jax.vmap(jnp.searchsorted, in_axes=(0, None)))
        place = jnp.minimum(search(by_id, ids), num_labels - 1)
        hits = jnp.take_along_axis(by_id, place, axis=-1) == ids[:, None, :]
    return hits.reshape(batch_size, num_sampled)


def score(
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    candidates: Candidates,
    true_log_expected_count: Float[Array, "B T"],
    true_vectors: Float[Array, "B T dim"],
    true_biases: Float[Array, "B T"] | None,
    sampled_vectors: Float[Array, "G S dim"],
    sampled_biases: Float[Array, "G S"] | None,
    *,
    num_classes: int,
) -> SampledLogits:
    """Logits of the true classes and of each group's candidates: one batched matrix product for any number of groups.

    Args:
        embeddings: of the examples.
        labels: true classes, -1 pads.
        candidates: one set a group of B / G consecutive examples.
        true_log_expected_count: of the labels; ignored at pads.
        true_vectors: class vectors of the labels; at pads any finite numbers, such as the zeros that fillers gather.
        true_biases: and their biases, or None.
        sampled_vectors: class vectors of the candidates; where masked any finite numbers.
        sampled_biases: and their biases, or None.
        num_classes: valid classes, over all devices.

    Returns:
        ``SampledLogits``, float32.
    """
    true = jnp.einsum("bd,btd->bt", embeddings, true_vectors, preferred_element_type=jnp.float32)
    if true_biases is not None:
        true += true_biases
    return score_beside(
        true,
        embeddings,
        labels,
        candidates,
        true_log_expected_count,
        sampled_vectors,
        sampled_biases,
        num_classes=num_classes,
    )


def score_beside(
    true: Float[Array, "B T"],
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    candidates: Candidates,
    true_log_expected_count: Float[Array, "B T"],
    sampled_vectors: Float[Array, "G S dim"],
    sampled_biases: Float[Array, "G S"] | None,
    *,
    num_classes: int,
) -> SampledLogits:
    """``score`` where the logits of the true classes, float32, are known already."""
    batch_size, dim = embeddings.shape
    groups, num_sampled = candidates.ids.shape
    grouped = embeddings.reshape(groups, batch_size // groups, dim)
    sampled = jnp.einsum("gbd,gsd->gbs", grouped, sampled_vectors, preferred_element_type=jnp.float32)
    if sampled_biases is not None:
        sampled += sampled_biases[:, None, :]

    def to_examples(of_group: Array) -> Array:
        shape = (groups, batch_size // groups, num_sampled)
        return jnp.broadcast_to(of_group[:, None, :], shape).reshape(batch_size, num_sampled)

    return SampledLogits(
        true=true,
        true_log_expected_count=true_log_expected_count,
        true_mask=labels_mask(labels),
        sampled=sampled.reshape(batch_size, num_sampled),
        sampled_log_expected_count=to_examples(candidates.log_expected_count),
        sampled_mask=to_examples(candidates.mask),
        hits=find_hits(labels, candidates.ids),
        num_classes=num_classes,
    )
