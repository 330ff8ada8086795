"""A draw of candidates and the class rows that it needs: what a training step and a diagnosis have in common."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, KeyArray, Query, SampledLogits, Sampler, State, pytree, static_field
from candax.cosines import as_scored
from candax.models.heads import score
from candax.rows import unique_rows


@pytree
class Drawn:
    """Candidates, and where the rows of labels and candidates lie among the distinct rows ``ids``.

    Attributes:
        candidates: the draw.
        true_log_expected_count: of the labels, under this draw.
        ids: the distinct classes among labels and candidates; fillers are beyond every row, see ``unique_rows``.
        true_at: positions of the labels among ``ids``.
        sampled_at: positions of the candidates.
        normalized: the head is: its logits are cosines.
    """

    candidates: Candidates
    true_log_expected_count: Float[Array, "B T"]
    ids: Int[Array, "n"]
    true_at: Int[Array, "B T"]
    sampled_at: Int[Array, "G S"]
    normalized: bool = static_field(default=False)


def draw_rows(sampler: Sampler, state: State, key: KeyArray, query: Query) -> Drawn:
    """Draws candidates for a batch and finds the distinct class rows among them and its labels."""
    labels = query.labels
    candidates = sampler.sample(state, key, query)
    groups = candidates.ids.shape[0]
    true_ids = jnp.maximum(labels, 0).reshape(groups, -1)
    true_count = sampler.log_expected_count(state, candidates, true_ids, query).reshape(labels.shape)
    sampled_ids = jnp.where(candidates.mask, candidates.ids, -1)
    unique = unique_rows(jnp.concatenate([labels.reshape(-1), sampled_ids.reshape(-1)]), query.classes.num_classes)
    return Drawn(
        candidates,
        true_count,
        unique.ids,
        unique.positions[: labels.size].reshape(labels.shape),
        unique.positions[labels.size :].reshape(sampled_ids.shape),
        query.classes.normalized,
    )


def score_rows(
    drawn: Drawn,
    embeddings: Float[Array, "B dim"],
    labels: Int[Array, "B T"],
    vectors: Float[Array, "n dim"],
    biases: Float[Array, "n"] | None,
    *,
    num_classes: int,
) -> SampledLogits:
    """``score`` from the rows of ``drawn.ids``; differentiate it with respect to them for row gradients.

    Of a normalised head embeddings and rows are divided by their length here, so that gradients pass through that.
    """
    embeddings, vectors = (as_scored(part, drawn.normalized) for part in (embeddings, vectors))
    return score(
        embeddings,
        labels,
        drawn.candidates,
        drawn.true_log_expected_count,
        vectors[drawn.true_at],
        None if biases is None else biases[drawn.true_at],
        vectors[drawn.sampled_at],
        None if biases is None else biases[drawn.sampled_at],
        num_classes=num_classes,
    )
