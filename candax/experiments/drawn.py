"""A draw of candidates and the class rows that it needs: what a training step and a diagnosis have in common."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from candax.base import Candidates, KeyArray, Query, SampledLogits, Sampler, State, pytree, static_field
from candax.cosines import as_scored
from candax.models.scoring import score as score_beside
from candax.models.windows import score_runs
from candax.rows import unique_rows


@pytree
class Drawn:
    """Candidates, and where the rows of labels and candidates lie among the distinct rows ``ids``.

    Attributes:
        candidates: the draw.
        true_log_expected_count: of the labels, under this draw.
        ids: the distinct classes among labels and candidates; fillers are beyond every row, see ``unique_rows``.
        true_at: positions of the labels among ``ids``; with ``in_runs`` those of the runs' words.
        sampled_at: positions of the candidates.
        normalized: the head is: its logits are cosines.
        in_runs: labels are neighbours in runs of words, see ``draw_rows``.
    """

    candidates: Candidates
    true_log_expected_count: Float[Array, "B T"]
    ids: Int[Array, "n"]
    true_at: Int[Array, "..."]
    sampled_at: Int[Array, "G S"]
    normalized: bool = static_field(default=False)
    in_runs: bool = static_field(default=False)


def draw_rows(
    sampler: Sampler, state: State, key: KeyArray, query: Query, runs: Int[Array, "R L"] | None = None
) -> Drawn:
    """Draws candidates for a batch and finds the distinct class rows among them and its labels.

    Args:
        sampler: of the candidates.
        state: the sampler's.
        key: of this draw.
        query: the batch as samplers see it.
        runs: where labels are neighbours in runs of words, these (-1: no word): label t of the example ``r L + i`` is
            -1 or the word at the t-th of the places ``i - w ... i - 1, i + 1 ... i + w`` of run r, with ``2 w = T``.
            Rows are then read once a place instead of once a label.

    Returns:
        See ``Drawn``.
    """
    labels = query.labels
    true = labels if runs is None else runs
    candidates = sampler.sample(state, key, query)
    groups = candidates.ids.shape[0]
    true_ids = jnp.maximum(labels, 0).reshape(groups, -1)
    true_count = sampler.log_expected_count(state, candidates, true_ids, query).reshape(labels.shape)
    sampled_ids = jnp.where(candidates.mask, candidates.ids, -1)
    unique = unique_rows(jnp.concatenate([true.reshape(-1), sampled_ids.reshape(-1)]), query.classes.num_classes)
    return Drawn(
        candidates,
        true_count,
        unique.ids,
        unique.positions[: true.size].reshape(true.shape),
        unique.positions[true.size :].reshape(sampled_ids.shape),
        query.classes.normalized,
        runs is not None,
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
    true_vectors, sampled_vectors = _at_both(vectors, drawn)
    true_biases, sampled_biases = (None, None) if biases is None else _at_both(biases, drawn)
    if not drawn.in_runs:
        return score(
            embeddings,
            labels,
            drawn.candidates,
            drawn.true_log_expected_count,
            true_vectors,
            true_biases,
            sampled_vectors,
            sampled_biases,
            num_classes=num_classes,
        )
    return score_beside(
        score_runs(embeddings, true_vectors, true_biases, labels.shape[1] // 2),
        embeddings,
        labels,
        drawn.candidates,
        drawn.true_log_expected_count,
        sampled_vectors,
        sampled_biases,
        num_classes=num_classes,
    )


def _at_both(rows: Float[Array, "n ..."], drawn: Drawn) -> tuple[Array, Array]:
    """The rows of labels and candidates by one gather: so that their gradients are one scatter."""
    true_at, sampled_at = drawn.true_at, drawn.sampled_at
    gathered = rows[jnp.concatenate([true_at.reshape(-1), sampled_at.reshape(-1)])]
    true, sampled = jnp.split(gathered, [true_at.size])
    return true.reshape(*true_at.shape, *rows.shape[1:]), sampled.reshape(*sampled_at.shape, *rows.shape[1:])


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
