"""Logits of true classes and candidates, as losses see them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, SampledLogits, labels_mask
from candax.checks import checked

# From about this many labels per example on, sorting them and searching is worth it. Measured on a CPU for 256 examples
# and 4096 shared candidates: comparing, fused into one pass, takes 1.9 ms at 64 labels and 3.9 at 128, sorting 8.6 and
# 10.
_SORT_FROM = 256


@checked
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


def find_more_hits(
    more_labels: Int[Array, "M 2"], ids: Int[Array, "G S"], batch_size: int
) -> Bool[Array, "batch_size S"]:
    """Which candidates of its group are further true classes of each example, given as pairs (example, class)."""
    examples, labels = more_labels[:, 0], more_labels[:, 1]
    # One set for all needs no copy of it for each pair.
    of_pair = ids if len(ids) == 1 else ids[jnp.maximum(examples, 0) // (batch_size // len(ids))]
    equal = (of_pair == labels[:, None]) & (labels >= 0)[:, None]
    rows = jnp.where(labels >= 0, examples, batch_size)  # pads lie beyond the batch
    return jnp.zeros((batch_size, ids.shape[1]), bool).at[rows].max(equal, mode="drop")


def score(
    true: Float[Array, "B T"],
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    candidates: Candidates,
    true_log_expected_count: Float[Array, "B T"],
    sampled_vectors: Float[Array, "G S dim"],
    sampled_biases: Float[Array, "G S"] | None,
    *,
    num_classes: int,
    more_hits: Bool[Array, "B S"] | None = None,
    num_labels: Int[Array, " B"] | None = None,
) -> SampledLogits:
    """Logits of each group's candidates beside those of the true classes: one matrix product for any number of groups.

    Args:
        true: logits of the labels, float32.
        embeddings: of the predictions.
        labels: true classes, -1 pads.
        candidates: one set per group of B / G consecutive predictions.
        true_log_expected_count: of the labels; ignored at pads.
        sampled_vectors: class vectors of the candidates; where masked any finite numbers.
        sampled_biases: and their biases, or None.
        num_classes: valid classes, over all devices.
        more_hits: see ``SampledLogits``.
        num_labels: see ``SampledLogits``.

    Returns:
        ``SampledLogits``, float32.
    """
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
        num_labels=num_labels,
        more_hits=more_hits,
    )
