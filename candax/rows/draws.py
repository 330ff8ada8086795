"""What a loss has drawn, which its sampler needs to follow the step, and statistics of it."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, KeyArray, Query, Sampler, State, pytree
from candax.checks import checked


@pytree
class Draw:
    """A draw of candidates for B predictions.

    Attributes:
        embeddings: as the sampler saw them.
        labels: as the sampler saw them; all -1 where a prediction does not count.
        key: for the sampler's update after the step.
        candidates: that were drawn.
        hits: of each prediction, how many candidates are its labels.
        effective_samples: of each prediction, ``(sum w)^2 / sum w^2`` of its candidates' importance weights.
        counted: which predictions count.
    """

    embeddings: Float[Array, "B dim"]
    labels: Int[Array, "B T"]
    key: KeyArray
    candidates: Candidates
    hits: Int[Array, " B"]
    effective_samples: Float[Array, " B"]
    counted: Bool[Array, " B"]

    def statistics(self) -> dict[str, Float[Array, ""]]:
        """Means over the predictions that count.

        Returns:
            ``candidates``: per set; ``hits`` and ``effective_samples``: per prediction; ``embedding_norm``: the mean
            length of an embedding; ``predictions``: how many count.
        """
        number = jnp.sum(self.counted)

        def mean(values: Array) -> Float[Array, ""]:
            return jnp.sum(jnp.where(self.counted, values, 0)) / jnp.maximum(number, 1)

        return {
            "candidates": jnp.mean(jnp.sum(self.candidates.mask, axis=1, dtype=jnp.float32)),
            "hits": mean(self.hits),
            "effective_samples": mean(self.effective_samples),
            "embedding_norm": mean(jnp.linalg.norm(self.embeddings.astype(jnp.float32), axis=1)),
            "predictions": number.astype(jnp.float32),
        }

    def joined(self) -> "Draw":
        """One draw of draws that are stacked along a leading axis."""
        flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self)
        return dataclasses.replace(flat, key=self.key[0])


def join(draws: Sequence[Draw]) -> Draw:
    """One draw of several by the same head, with the candidates of the first."""
    if len(draws) == 1:
        return draws[0]
    width = max(draw.labels.shape[1] for draw in draws)
    labels = [jnp.pad(draw.labels, ((0, 0), (0, width - draw.labels.shape[1])), constant_values=-1) for draw in draws]
    return dataclasses.replace(
        draws[0],
        embeddings=jnp.concatenate([draw.embeddings for draw in draws]),
        labels=jnp.concatenate(labels),
        hits=jnp.concatenate([draw.hits for draw in draws]),
        effective_samples=jnp.concatenate([draw.effective_samples for draw in draws]),
        counted=jnp.concatenate([draw.counted for draw in draws]),
    )


@checked
def update_sampler(
    sampler: Sampler,
    state: State,
    draw: Draw,
    classes: Classes,
    row_ids: Int[Array, " U"],
    rows: Float[Array, "U dim"],
) -> State:
    """The state of a sampler after a step: what follows the class vectors, or learns from labels, has seen it.

    Args:
        sampler: that has drawn.
        state: its state in the step.
        draw: from ``sampled_loss(..., return_draw=True)``.
        classes: the output layer, of arrays, after the step.
        row_ids: sorted and unique ids of the class vectors that changed, fillers >= num_classes: ``RowUpdate.ids``.
        rows: their new values: ``RowUpdate.rows``.

    Returns:
        The new state.
    """
    return sampler.update(state, draw.key, Query(draw.embeddings, draw.labels, classes), row_ids, rows)
