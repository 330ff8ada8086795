"""Drawing candidates for predictions, and the logits of true classes and candidates as losses see them."""

from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from candax.base import Candidates, Classes, KeyArray, Loss, Query, SampledLogits, Sampler, State, labels_mask
from candax.checks import check_positive, checked, described
from candax.cosines import as_scored, inner_products, widened
from candax.losses.common import innermost, minus_log_expected_count, without_hits
from candax.losses.contrastive import nce
from candax.models.computed import takes_where
from candax.models.predictions import Predictions
from candax.models.windows import score_runs
from candax.rows.draws import Draw
from candax.rows.gradients import unique_rows
from candax.rows.lookups import Longer, TableView, lookup
from candax.rows.tables import Lagging, Placement, Table

# ``fn(ids[n]) -> [n, dim]``, or ``fn(ids[n], where[n])`` where some of the ids are fillers.
VectorsOf: TypeAlias = Callable[..., Float[Array, "n dim"]]
# From about this many labels per example on, sorting them and searching is worth it. Measured on a CPU for 256 examples
# and 4096 shared candidates: comparing, fused into one pass, takes 1.9 ms at 64 labels and 3.9 at 128, sorting 8.6 and
# 10.
_SORT_FROM = 256
# Rows of more candidates than this are looked up apart from those of true classes: both at once would have to be cut in
# two, which copies them. For fewer, two lookups take longer than the copy.
_APART = 1 << 14


def draw_and_score(
    flat: Predictions,
    classes: Classes,
    *,
    sampler: Sampler,
    state: State,
    key: KeyArray,
    loss: Loss,
    num_classes: int,
    block_size: int | None = None,
    vectors: VectorsOf | None = None,
    placement: Placement | None = None,
    runs: Int[Array, "R L"] | None = None,
) -> tuple[Float[Array, " B"], Draw]:
    """The losses of all predictions, and what was drawn for them; ``runs``: see ``Head.loss``."""
    labels = flat.labels
    key_sample, key_update = jax.random.split(key)
    query = Query(
        as_scored(jax.lax.stop_gradient(flat.embeddings), classes.normalized), labels, without_gradient(classes)
    )
    candidates = sampler.sample(jax.lax.stop_gradient(state), key_sample, query)
    if candidates.ids.ndim != 2:
        raise ValueError(
            "expected sampler.sample to return candidates [groups, slots], such as [1, slots] for a set that all "
            f"predictions share; got ids of shape {list(candidates.ids.shape)}."
        )
    groups = candidates.ids.shape[0]
    true_ids = jnp.maximum(labels, 0).reshape(groups, labels.size // max(groups, 1))  # an empty batch may have none
    true_count = sampler.log_expected_count(state, candidates, true_ids, query).reshape(labels.shape)
    true = labels if runs is None else runs
    drawn_ids = jnp.where(candidates.mask, candidates.ids, -1)
    true_rows: Array | None
    (true_rows, true_biases), (sampled_rows, sampled_biases) = _rows_of_both(classes, true, drawn_ids, vectors)
    if sampled_rows.shape[-1] != flat.embeddings.shape[-1]:
        raise ValueError(
            "expected embeddings and class vectors of one width, got "
            f"{flat.embeddings.shape[-1]} and {sampled_rows.shape[-1]}."
        )
    embeddings = as_scored(flat.embeddings, classes.normalized)
    if placement is not None:
        # Each device scores the candidates of its own classes: so are their slots laid out.
        sampled_rows = placement.spread(sampled_rows, 1)

    if runs is not None:
        # Their logits are known from here on: one number per label, and no vectors.
        assert true_rows is not None
        true_biases = score_runs(embeddings, true_rows, true_biases, labels.shape[1] // 2)
        true_rows = None

    def of_some(per_prediction: Any, per_group: Any) -> tuple[Array, Array, Array]:
        some_embeddings, some_labels, count, of_true, of_true_biases, more_hits, num_labels = per_prediction
        some_candidates, of_sampled, of_sampled_biases = per_group
        if of_true is None:
            true_logits = of_true_biases
        else:
            true_logits = jnp.einsum("bd,btd->bt", some_embeddings, of_true, preferred_element_type=jnp.float32)
            true_logits = true_logits if of_true_biases is None else true_logits + of_true_biases
        logits = score(
            true_logits,
            some_embeddings,
            some_labels,
            some_candidates,
            count,
            of_sampled,
            of_sampled_biases,
            num_classes=num_classes,
            more_hits=more_hits,
            num_labels=num_labels,
        )
        losses = loss(logits)
        if isinstance(losses, SampledLogits):
            raise ValueError(
                "expected a loss that gives a number per prediction, got one that gives logits, as margins do: put it "
                "before a loss, cx.losses.with_margin(margin, loss)."
            )
        return losses, jnp.sum(logits.hits & logits.sampled_mask, axis=1), _effective_samples(logits)

    _check_blocks(loss, block_size, len(labels))
    drawn = Candidates(candidates.ids, candidates.log_expected_count, candidates.mask)
    more_hits = None if flat.more_labels is None else find_more_hits(flat.more_labels, drawn.ids, len(labels))
    per_prediction = (embeddings, labels, true_count, true_rows, true_biases, more_hits, flat.num_labels)
    per_group = (drawn, sampled_rows, sampled_biases)
    losses, hits, effective = _in_blocks(of_some, per_prediction, per_group, groups, block_size)
    if getattr(losses, "shape", None) != labels.shape[:1]:
        raise ValueError(
            f"expected a loss that returns {labels.shape[0]} numbers, one per prediction, got {described(losses)}."
        )
    draw = Draw(query.embeddings, labels, key_update, drawn, jax.lax.stop_gradient(hits), effective, flat.counted)
    return losses, draw


def _rows_of_both(
    classes: Classes, true: Int[Array, "..."], drawn: Int[Array, "G S"], vectors: VectorsOf | None
) -> list[tuple[Array, Array | None]]:
    """Vectors, as they are scored, and biases of true classes and of candidates, in the shapes of their ids."""
    if vectors is None and drawn.size > _APART:
        found = [class_rows(classes, ids.reshape(-1), None) for ids in (true, drawn)]
    else:
        rows, biases = class_rows(classes, jnp.concatenate([true.reshape(-1), drawn.reshape(-1)]), vectors)
        # The gradient of a split is one array, and not a sum of two padded ones.
        of_each = (None, None) if biases is None else jnp.split(biases, [true.size])
        found = list(zip(jnp.split(rows, [true.size]), of_each, strict=True))
    return [
        (
            as_scored(rows, classes.normalized).reshape(*ids.shape, *rows.shape[1:]),
            None if biases is None else biases.reshape(ids.shape),
        )
        for (rows, biases), ids in zip(found, (true, drawn), strict=True)
    ]


def class_rows(
    classes: Classes, ids: Int[Array, " n"], vectors: VectorsOf | None
) -> tuple[Float[Array, "n dim"], Float[Array, " n"] | None]:
    """Vectors and biases of classes; zeros where an id is -1."""
    biases = None if classes.biases is None else widened(lookup(classes.biases, ids))
    if vectors is None:
        return lookup(classes.vectors, ids), biases
    return computed_rows(vectors, ids, classes.num_classes), biases


def computed_rows(vectors: VectorsOf, ids: Int[Array, " n"], num_classes: int) -> Float[Array, "n dim"]:
    """Vectors of a function, each class computed once; zeros where an id is -1."""
    unique = unique_rows(ids, num_classes)
    real = unique.ids < num_classes
    # Fillers get the id of a class that is there anyway.
    filled = jnp.where(real, unique.ids, jnp.minimum(unique.ids[0], num_classes - 1))
    rows = vectors(filled, real) if takes_where(vectors) else vectors(filled)
    if rows.ndim != 2 or rows.shape[0] != ids.shape[0]:
        raise ValueError(
            f"expected vectors(ids) to return [{ids.shape[0]}, dim] for {ids.shape[0]} ids, got {list(rows.shape)}."
        )
    return jnp.where(real[:, None], rows, 0)[unique.positions]


@checked
def find_hits(labels: Int[Array, "B T"], ids: Int[Array, "G S"]) -> Bool[Array, "B S"]:
    """Which candidates of its group are labels of each example (labels pad with -1, candidate ids never do)."""
    groups, num_sampled = ids.shape
    batch_size, num_labels = labels.shape
    labels = labels.reshape(groups, batch_size // max(groups, 1), num_labels)
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
    if not batch_size:
        return jnp.zeros((0, ids.shape[1]), bool)
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

    ``true`` are the logits of the labels. Where candidates are masked their vectors may be any finite numbers.
    """
    batch_size, dim = embeddings.shape
    groups, num_sampled = candidates.ids.shape
    of_group = batch_size // max(groups, 1)
    grouped = embeddings.reshape(groups, of_group, dim)
    sampled = inner_products(grouped, sampled_vectors)
    if sampled_biases is not None:
        sampled += sampled_biases[:, None, :]

    def to_examples(per_group: Array) -> Array:
        shape = (groups, of_group, num_sampled)
        return jnp.broadcast_to(per_group[:, None, :], shape).reshape(batch_size, num_sampled)

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


def _check_blocks(loss: Loss, block_size: int | None, number: int) -> None:
    """Raises ValueError for sizes that cannot be, and losses with a number for each of all predictions."""
    check_positive("block_size", block_size, optional=True)
    inner, keywords = innermost(loss)
    of_each = inner is nce and jnp.size(keywords.get("log_normalizer", 0.0)) > 1
    if of_each and block_size is not None and block_size < number:
        raise ValueError(
            f"expected nce with one log_normalizer where block_size={block_size} of {number} predictions are scored at "
            "a time, got one for each. Leave block_size out, or subtract them from the logits in a loss of your own."
        )


def _in_blocks(
    of_some: Callable[[Any, Any], Any], per_prediction: Any, per_group: Any, groups: int, block_size: int | None
) -> Any:
    """``of_some`` of blocks of predictions; where there are several groups, of whole groups."""
    number = per_prediction[1].shape[0]
    if block_size is None or block_size >= number:
        return of_some(per_prediction, per_group)
    recomputed = jax.checkpoint(of_some)
    if groups == 1:
        blocks = -(-number // block_size)
        missing = blocks * block_size - number

        def cut(array: Array) -> Array:
            padded = jnp.pad(array, ((0, missing), *[(0, 0)] * (array.ndim - 1)))
            return padded.reshape(blocks, block_size, *array.shape[1:])

        embeddings, labels, *others = per_prediction
        labels = jnp.pad(labels, ((0, missing), (0, 0)), constant_values=-1).reshape(blocks, block_size, -1)
        cut_up = (cut(embeddings), labels, *jax.tree.map(cut, others))
        results = jax.lax.map(lambda block: recomputed(block, per_group), cut_up)
        return jax.tree.map(lambda result: result.reshape(-1)[:number], results)
    whole = max(1, block_size // (number // groups))
    whole = next(size for size in range(whole, 0, -1) if groups % size == 0)
    blocks = groups // whole
    both = jax.tree.map(lambda array: array.reshape(blocks, -1, *array.shape[1:]), (per_prediction, per_group))
    results = jax.lax.map(lambda block: recomputed(*block), both)
    return jax.tree.map(lambda result: result.reshape(-1), results)


def _effective_samples(logits: SampledLogits) -> Float[Array, " B"]:
    """``(sum w)^2 / sum w^2`` of the weights w = exp(logit - log count) of the candidates that are no hits."""
    logits = jax.lax.stop_gradient(logits)
    keep = without_hits(logits)
    corrected = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    corrected = jnp.where(keep, corrected, -jnp.inf)
    top = jnp.max(corrected, axis=1, initial=-jnp.inf, keepdims=True)
    weights = jnp.exp(corrected - jnp.where(top > -jnp.inf, top, 0))
    squares = jnp.sum(weights**2, axis=1)
    return jnp.sum(weights, axis=1) ** 2 / jnp.where(squares > 0, squares, 1)


def as_arrays(classes: Classes) -> Classes:
    """The output layer with arrays in place of tables."""

    def array(part: Any) -> Any:
        if isinstance(part, Longer):
            return jnp.pad(array(part.table), (0, part.shape[0] - part.table.shape[0]))
        part = part.table if isinstance(part, Lagging) else part  # an index is told of rows as they are written
        return part[...] if isinstance(part, Table | TableView) else part

    vectors, biases = array(classes.vectors), array(classes.biases)
    return Classes(vectors, biases, classes.counts, classes.num_valid, classes.normalized)


def without_gradient(classes: Classes) -> Classes:
    """The output layer as samplers see it."""
    return jax.lax.stop_gradient(as_arrays(classes))
