"""The sampled loss as a pure function: draw candidates, score them and the labels, reduce. Heads are built on it."""

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Integer

from candax.base import Candidates, Classes, KeyArray, Loss, Query, SampledLogits, Sampler, State
from candax.checks import check_positive, checked
from candax.cosines import as_scored
from candax.losses.common import minus_log_expected_count, without_hits
from candax.losses.full import full_softmax, scores_all_classes
from candax.models.computed import takes_where
from candax.models.predictions import Predictions, check_reduction, predictions
from candax.models.scoring import find_more_hits, score
from candax.models.windows import score_runs
from candax.rows.draws import Draw
from candax.rows.lookups import TableView, lookup
from candax.rows.placement import Placement
from candax.rows.slots import Lagging
from candax.rows.tables import Table
from candax.rows.unique import unique_rows

# ``fn(ids[n]) -> [n, dim]``, or ``fn(ids[n], where[n])`` where some of the ids are fillers.
VectorsOf: TypeAlias = Callable[..., Float[Array, "n dim"]]


@checked
def sampled_loss(
    embeddings: Float[Array | np.ndarray, "..."],
    labels: Integer[Array | np.ndarray, "..."],
    classes: Classes,
    *,
    sampler: Sampler | None,
    state: State = (),
    key: KeyArray | None = None,
    loss: Callable[..., Float[Array, " B"]],
    where: Array | np.ndarray | None = None,
    weights: Array | np.ndarray | None = None,
    reduction: str = "mean",
    block_size: int | None = None,
    return_draw: bool = False,
    vectors: VectorsOf | None = None,
    more_labels: Integer[Array | np.ndarray, "..."] | None = None,
) -> Any:
    """The loss of predictions over a large output layer, from a few sampled classes: ``sum(w loss) / sum(w)``.

    A pure function for any framework, inside your own ``jax.value_and_grad``: gradients go to ``embeddings`` and to
    ``classes.vectors`` and ``classes.biases``. Where these are arrays, their gradients are dense; where they are views
    of ``cx.rows.value_and_grad``, row gradients.

    Labels of -1 are no labels; a prediction without one, or with ``where`` False, counts for nothing: neither the
    sampler nor the loss sees its embedding. A class that stands twice among the labels of a prediction counts once. A
    label out of range makes the loss NaN.

    Args:
        embeddings: ``[..., dim]``, of any floating-point type; logits are accumulated in float32.
        labels: integers ``[...]``, or ``[..., T]`` for several true classes per prediction: told apart by rank.
        classes: the output layer.
        sampler: of the candidates; None with a loss over all classes (``cx.losses.full_softmax``).
        state: the sampler's, from ``sampler.init(key, classes)``.
        key: of this step, such as ``jax.random.fold_in(key, step)``.
        loss: on ``SampledLogits``; or one over all classes.
        where: ``bool[...]``, which predictions count.
        weights: ``float[...]``.
        reduction: "mean", "sum", or "none" for losses of the predictions' shape, times their weights.
        block_size: the most predictions scored at a time, computed again in the backward pass, so that ``[B, S]``
            logits never exist at once (at least those of one group). None: all at once.
        return_draw: return the ``Draw`` too, for ``cx.rows.update_sampler`` and for its ``statistics()``.
        vectors: where class vectors are computed, ``fn(ids[n]) -> [n, dim]``; then ``classes.vectors`` is only what the
            sampler sees, ``jnp.zeros((num_classes, 0))`` for one that looks at none. Among the ids are fillers; a
            function with batch statistics takes ``fn(ids, where)`` and leaves out those where ``where`` is False.
        more_labels: ``[M, 2]``, pairs (number of a prediction, true class) for predictions that have more true classes
            than ``labels`` has slots; ``labels`` must then be a random subset of them. They are no negatives where they
            are drawn, at little cost for any number of them. -1 pads.

    Returns:
        The loss, float32; with ``return_draw`` the loss and the ``Draw``.

    Raises:
        ValueError: for arguments that do not fit each other.

    Example:
        >>> import jax, jax.numpy as jnp, candax as cx
        >>> classes = cx.Classes(jnp.zeros((1000, 8)))
        >>> sampler, key = cx.samplers.uniform(64), jax.random.key(0)
        >>> loss = cx.sampled_loss(
        ...     jnp.ones((4, 7, 8)), jnp.zeros((4, 7), jnp.int32), classes,
        ...     sampler=sampler, state=sampler.init(key, classes), key=key, loss=cx.losses.css,
        ... )
        >>> abs(float(loss) - 6.9) < 0.1  # log 1000
        True
    """
    check_reduction(reduction)
    check_sampler_and_loss(sampler, loss)
    num_classes = _num_valid(classes)
    flat = predictions(
        embeddings,
        labels,
        num_classes=num_classes,
        num_valid=classes.num_valid,
        where=where,
        weights=weights,
        more_labels=more_labels,
    )
    if sampler is None:
        if return_draw or vectors is not None:
            raise ValueError("expected a sampler with return_draw and vectors, got sampler=None.")
        return flat.reduce(loss_over_all(flat, _arrays(classes), loss), reduction)
    if key is None:
        raise ValueError("expected key=, a jax.random.key of this step, to draw candidates with; got none.")
    _check_state(sampler, state, key, classes)
    losses, draw = draw_and_score(
        flat,
        classes,
        sampler=sampler,
        state=state,
        key=key,
        loss=loss,
        num_classes=num_classes,
        block_size=block_size,
        vectors=vectors,
    )
    value = flat.reduce(losses, reduction)
    return (value, draw) if return_draw else value


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
        as_scored(jax.lax.stop_gradient(flat.embeddings), classes.normalized), labels, _without_gradient(classes)
    )
    candidates = sampler.sample(jax.lax.stop_gradient(state), key_sample, query)
    groups, num_sampled = candidates.ids.shape
    true_ids = jnp.maximum(labels, 0).reshape(groups, -1)
    true_count = sampler.log_expected_count(state, candidates, true_ids, query).reshape(labels.shape)
    true = labels if runs is None else runs
    ids = jnp.concatenate([true.reshape(-1), jnp.where(candidates.mask, candidates.ids, -1).reshape(-1)])
    rows, biases = class_rows(classes, ids, vectors)
    rows = as_scored(rows, classes.normalized)
    if rows.shape[-1] != flat.embeddings.shape[-1]:
        raise ValueError(
            f"expected embeddings and class vectors of one width, got {flat.embeddings.shape[-1]} and {rows.shape[-1]}."
        )
    embeddings = as_scored(flat.embeddings, classes.normalized)
    number = true.size

    def parts(of: Array) -> tuple[Array, Array]:
        of_true, of_sampled = of[:number], of[number:]
        return of_true.reshape(*true.shape, *of.shape[1:]), of_sampled.reshape(groups, num_sampled, *of.shape[1:])

    true_rows: Array | None
    true_rows, sampled_rows = parts(rows)
    true_biases, sampled_biases = (None, None) if biases is None else parts(biases)
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
        return loss(logits), jnp.sum(logits.hits & logits.sampled_mask, axis=1), _effective_samples(logits)

    drawn = Candidates(candidates.ids, candidates.log_expected_count, candidates.mask)
    more_hits = None if flat.more_labels is None else find_more_hits(flat.more_labels, drawn.ids, len(labels))
    per_prediction = (embeddings, labels, true_count, true_rows, true_biases, more_hits, flat.num_labels)
    per_group = (drawn, sampled_rows, sampled_biases)
    losses, hits, effective = _in_blocks(of_some, per_prediction, per_group, groups, block_size)
    if losses.shape != labels.shape[:1]:
        raise ValueError(
            f"expected a loss that returns {labels.shape[0]} numbers, one per prediction, got {losses.shape}."
        )
    draw = Draw(query.embeddings, labels, key_update, drawn, jax.lax.stop_gradient(hits), effective, flat.counted)
    return losses, draw


def class_rows(
    classes: Classes, ids: Int[Array, " n"], vectors: VectorsOf | None
) -> tuple[Float[Array, "n dim"], Float[Array, " n"] | None]:
    """Vectors and biases of classes; zeros where an id is -1."""
    biases = None if classes.biases is None else lookup(classes.biases, ids)
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


def reads_vectors(sampler: Sampler, num_classes: int) -> bool:
    """Whether a sampler looks at class vectors, or only at labels, counts and embeddings."""

    def draw(vectors: Array, key: KeyArray) -> Any:
        classes = Classes(vectors, None, jnp.ones(num_classes))
        query = Query(jnp.ones((1, vectors.shape[1])), jnp.zeros((1, 1), jnp.int32), classes)
        return sampler.sample(sampler.init(key, classes), key, query)

    vectors = jax.ShapeDtypeStruct((num_classes, 2), jnp.float32)
    traced = jax.make_jaxpr(draw)(vectors, jax.eval_shape(jax.random.key, 0)).jaxpr
    return any(var is traced.invars[0] for equation in traced.eqns for var in equation.invars)


def _in_blocks(
    of_some: Callable[[Any, Any], Any], per_prediction: Any, per_group: Any, groups: int, block_size: int | None
) -> Any:
    """``of_some`` over blocks of predictions, of whole groups where there are several."""
    number = per_prediction[1].shape[0]
    check_positive("block_size", block_size, optional=True)
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


def _without_gradient(classes: Classes) -> Classes:
    """Arrays alone, as samplers see them."""

    def array(part: Any) -> Any:
        part = part.table if isinstance(part, Lagging) else part  # an index is told of rows as they are written
        if isinstance(part, Table | TableView):
            part = part[...]
        return None if part is None else jax.lax.stop_gradient(part)

    vectors, biases = array(classes.vectors), array(classes.biases)
    return Classes(vectors, biases, array(classes.counts), array(classes.num_valid), classes.normalized)


def loss_over_all(flat: Predictions, classes: Classes, loss: Callable[..., Array]) -> Float[Array, " B"]:
    """A loss that scores all classes itself."""
    if flat.more_labels is None or getattr(loss, "func", loss) is full_softmax:  # which knows no negatives
        return loss(flat.embeddings, flat.labels, classes)
    return loss(flat.embeddings, flat.labels, classes, flat.more_labels)


def _arrays(classes: Classes) -> Classes:
    vectors, biases = (
        part[...] if isinstance(part, Table | TableView) else part for part in (classes.vectors, classes.biases)
    )
    return Classes(vectors, biases, None, classes.num_valid, classes.normalized)


def _num_valid(classes: Classes) -> int:
    """The number of valid classes, where it is known while tracing; else that of the rows."""
    return classes.num_classes if isinstance(classes.num_valid, jax.core.Tracer) else int(classes.num_valid)


def check_sampler_and_loss(sampler: Any, loss: Any) -> None:
    """Raises ValueError for what is no sampler or no loss, unknown keywords of a loss, or a pair that does not fit."""
    if sampler is not None and not isinstance(sampler, Sampler):
        hint = "That is the factory: call it, as in cx.samplers.uniform(64)" if callable(sampler) else "See cx.samplers"
        raise ValueError(f"expected a Sampler, got {sampler!r}. {hint}.")
    if not callable(loss):
        raise ValueError(f"expected a loss, a function of SampledLogits such as cx.losses.css, got {loss!r}.")
    if isinstance(loss, partial):
        try:
            inspect.signature(loss)
        except (TypeError, ValueError) as error:
            known = [
                name
                for name, parameter in inspect.signature(loss.func).parameters.items()
                if parameter.kind is parameter.KEYWORD_ONLY
            ]
            name = getattr(loss.func, "__name__", repr(loss.func))
            raise ValueError(
                f"expected the keywords of the loss {name} to be among {known}, got {sorted(loss.keywords)}."
            ) from error
    if scores_all_classes(loss) != (sampler is None):
        raise ValueError(
            "expected a sampler with every loss but full_softmax and over_all_classes(...), each of which scores all "
            f"classes itself and takes none: got sampler={'None' if sampler is None else 'a sampler'} with {loss!r}."
        )


def _check_state(sampler: Sampler, state: State, key: KeyArray, classes: Classes) -> None:
    """Raises ValueError where a state is of another sampler or of another number of classes."""
    try:
        wanted = jax.eval_shape(sampler.init, key, _without_gradient(classes))
    except jax.errors.JAXTypeError:
        return  # a sampler whose init computes on the host
    shapes = [
        [(jnp.shape(leaf), getattr(leaf, "dtype", type(leaf))) for leaf in jax.tree.leaves(tree)]
        for tree in (wanted, state)
    ]
    structures = [str(jax.tree.structure(tree)) for tree in (wanted, state)]
    if structures[0] != structures[1] or shapes[0] != shapes[1]:
        raise ValueError(
            f"expected the state of this sampler for {classes.num_classes} classes, got another one: its arrays are "
            f"{shapes[1]} where {shapes[0]} are expected. Make it by sampler.init(key, classes) of these classes."
        )
