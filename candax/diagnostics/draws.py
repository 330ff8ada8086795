"""Losses and gradients of a batch from drawn candidates, beside those from all classes; many draws per call."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from candax.base import Classes, KeyArray, Loss, Query, SampledLogits, Sampler, State
from candax.blocks import DEFAULT_BLOCK_SIZE, streaming_evaluate, streaming_sample
from candax.diagnostics.statistics import Measure, mean
from candax.diagnostics.timing import milliseconds
from candax.diagnostics.top_k import top_k_share, which_count
from candax.losses import full_softmax
from candax.losses.common import log_sum_exp, mean_over_labels, minus_log_expected_count, without_hits
from candax.models.predictions import predictions
from candax.models.scoring import draw_and_score
from candax.rows import gather_rows, value_and_grad

# Calls that are timed.
_TIMED = 10


class Gradients(NamedTuple):
    """Gradients of a mean loss; ``classes`` are those to class vectors and, as a last column, to biases, if any."""

    embeddings: Float[Array, "B dim"]
    classes: Float[Array, "rows columns"]


class Exact(NamedTuple):
    """What comes of a batch if all classes are scored.

    Attributes:
        log_normalizer: log Z.
        mean_true: mean of the true logits.
        top_ids: the best classes.
        top_counts: which of these count: those that are classes at all, and not labels of the example.
        gradients: of the mean full softmax loss.
    """

    log_normalizer: Float[Array, " B"]
    mean_true: Float[Array, " B"]
    top_ids: Int[Array, "B k"]
    top_counts: Bool[Array, "B k"]
    gradients: Gradients


class Closeness(NamedTuple):
    """One draw's gradient g beside the exact one: squared norms and inner products (or each row's share of them).

    Attributes:
        square: |g|^2.
        with_exact: <g, g_full>.
        squared_error: |g - g_full|^2.
        with_earlier: <g - g_full, m - g_full>, where m is the mean gradient of earlier draws.
    """

    square: Float[Array, "..."]
    with_exact: Float[Array, "..."]
    squared_error: Float[Array, "..."]
    with_earlier: Float[Array, "..."]


class Draw(NamedTuple):
    """One draw: see ``candax.diagnostics.Diagnostics`` for what the names mean."""

    log_z_error: Float[Array, " B"]
    num_candidates: Float[Array, " B"]
    effective_sample_size: Float[Array, " B"]
    top_k_share: Float[Array, " B"]
    embeddings: Closeness
    classes: Closeness


def gradient(sampler: Sampler, loss: Loss, num_classes: int, state: State, key: KeyArray, query: Query) -> Any:
    """What a training step makes of a draw: mean loss (with candidates, losses and logits) and its gradients by row."""
    classes = query.classes
    tables = {"vectors": classes.vectors} | ({} if classes.biases is None else {"biases": classes.biases})

    def mean_loss(tables: dict[str, Any], embeddings: Array) -> tuple[Float[Array, ""], Any]:
        seen: list[tuple[Array, SampledLogits]] = []

        def keeping(logits: SampledLogits) -> Float[Array, " B"]:
            seen.append((loss(logits), logits))
            return seen[-1][0]

        of_rows = dataclasses.replace(classes, vectors=tables["vectors"], biases=tables.get("biases"))
        flat = predictions(embeddings, query.labels, num_classes=num_classes, num_valid=classes.num_valid)
        losses, drawn = draw_and_score(
            flat, of_rows, sampler=sampler, state=state, key=key, loss=keeping, num_classes=num_classes
        )
        return jnp.mean(losses), (drawn.candidates, *seen[0])

    return value_and_grad(mean_loss, has_aux=True)(tables, query.embeddings)


def step_ms(sampler: Sampler, loss: Loss, num_classes: int, state: State, key: KeyArray, query: Query) -> Measure:
    """How long a draw takes with its gradients."""

    def step(state: State, key: KeyArray, query: Query) -> Any:
        (value, _), grads = gradient(sampler, loss, num_classes, state, key, query)
        return value, grads.params, {name: (rows.ids, rows.rows) for name, rows in grads.rows.items()}

    compiled = jax.jit(step)
    return mean(milliseconds(lambda: compiled(state, key, query), _TIMED))


def full_ms(query: Query) -> Measure:
    """How long the full softmax takes with its gradients."""
    compiled = jax.jit(_full_gradients)
    return mean(milliseconds(lambda: compiled(query), _TIMED))


# (state, keys[n], query, exact, totals, earlier) -> (totals, n draws)
Draws = Callable[[State, Key[Array, " n"], Query, Exact, Gradients, Gradients], tuple[Gradients, Draw]]


@partial(jax.jit, static_argnums=1)
def exactly(query: Query, top_k: int) -> Exact:
    """Scores all classes, in blocks; the gradient to the classes is dense."""
    embeddings, labels, classes = query.embeddings, query.labels, query.classes
    scores, top_ids, log_normalizer = streaming_evaluate(embeddings, classes, top_k)
    (to_embeddings, to_vectors, to_biases), losses = _full_gradients(query)
    return Exact(
        log_normalizer=log_normalizer,
        mean_true=log_normalizer - losses,
        top_ids=top_ids,
        top_counts=which_count(scores, top_ids, labels),
        gradients=Gradients(to_embeddings, _columns(to_vectors, to_biases)),
    )


def _full_gradients(query: Query) -> tuple[tuple[Array, Array, Array | None], Float[Array, " B"]]:
    """Gradients to embeddings, class vectors and biases of the mean full softmax loss, and each example's loss."""
    embeddings, labels, classes = query.embeddings, query.labels, query.classes

    def mean_loss(
        embeddings: Array, vectors: Array, biases: Array | None
    ) -> tuple[Float[Array, ""], Float[Array, " B"]]:
        of_vectors = Classes(vectors, biases, None, classes.num_valid, classes.normalized)
        losses = full_softmax(embeddings, labels, of_vectors, block_size=DEFAULT_BLOCK_SIZE)
        return jnp.mean(losses), losses

    return jax.grad(mean_loss, argnums=(0, 1, 2), has_aux=True)(embeddings, classes.vectors, classes.biases)


def _columns(vectors: Float[Array, "n dim"], biases: Float[Array, " n"] | None) -> Float[Array, "n columns"]:
    return vectors if biases is None else jnp.concatenate([vectors, biases[:, None].astype(vectors.dtype)], axis=1)


def make_draws(sampler: Sampler, loss: Loss, *, num_classes: int, new_index: bool, own_labels: bool = False) -> Draws:
    """Compiles a sampler and a loss into a function of keys that makes one draw per key, one after the other.

    The function also adds the gradients of the draws to ``totals``. It holds the gradients of one draw as rows, so that
    apart from the totals its cost and memory are about those of a training step.

    Args:
        sampler: any.
        loss: any on ``SampledLogits``.
        num_classes: valid classes.
        new_index: whether every draw builds a state of its own from all classes.
        own_labels: whether every draw also draws labels, from the softmax of the model. The loss then sees
            log-probabilities, that is logits less each example's log Z, which is where nce has its optimum.

    Returns:
        A function of the sampler's state, keys, the batch with its output layer, what ``exactly`` gives for it, the
        totals so far (donated), and the mean gradients of earlier draws.
    """

    def one(
        state: State,
        key: KeyArray,
        query: Query,
        exact: Exact,
        totals: Gradients,
        earlier: Gradients,
        if_untouched: Closeness,
    ) -> tuple[Gradients, Draw]:
        key_index, key = jax.random.split(key)
        classes = query.classes
        if new_index:
            state = sampler.init(key_index, classes)
        of_logits = loss
        if own_labels:
            key, key_labels = jax.random.split(key)
            own = streaming_sample(key_labels, query.embeddings, classes)
            query, of_logits = dataclasses.replace(query, labels=own[:, None]), _normalised(loss, exact.log_normalizer)
        (_, (candidates, losses, logits)), grads = gradient(sampler, of_logits, num_classes, state, key, query)
        of_vectors, to_embeddings = grads.rows["vectors"], grads.params
        ids = of_vectors.ids
        rows = _columns(of_vectors.rows, None if classes.biases is None else grads.rows["biases"].rows)
        draw = Draw(
            log_z_error=losses + mean_over_labels(logits.true, logits.true_mask) - exact.log_normalizer,
            num_candidates=jnp.sum(logits.sampled_mask, axis=1).astype(jnp.float32),
            effective_sample_size=_effective_sample_size(logits),
            top_k_share=top_k_share(candidates, exact.top_ids, exact.top_counts),
            embeddings=_closeness(to_embeddings, exact.gradients.embeddings, earlier.embeddings),
            classes=_closeness_of_rows(rows, ids, exact.gradients.classes, earlier.classes, if_untouched),
        )
        totals = Gradients(
            totals.embeddings + to_embeddings,
            totals.classes.at[ids].add(rows, mode="drop", unique_indices=True, indices_are_sorted=True),
        )
        return totals, draw

    @partial(jax.jit, donate_argnums=4)
    def many(
        state: State, keys: Key[Array, " n"], query: Query, exact: Exact, totals: Gradients, earlier: Gradients
    ) -> tuple[Gradients, Draw]:
        if_untouched = _closeness_by_row(exact.gradients.classes, earlier.classes)

        def step(totals: Gradients, key: KeyArray) -> tuple[Gradients, Draw]:
            return one(state, key, query, exact, totals, earlier, if_untouched)

        return jax.lax.scan(step, totals, keys)

    return many


def _normalised(loss: Loss, log_normalizer: Float[Array, " B"]) -> Loss:
    """The loss of log-probabilities: of logits less log Z."""

    def of_log_probabilities(logits: SampledLogits) -> Float[Array, " B"]:
        log_z = log_normalizer[:, None]
        return loss(dataclasses.replace(logits, true=logits.true - log_z, sampled=logits.sampled - log_z))

    return of_log_probabilities


def _effective_sample_size(logits: SampledLogits) -> Float[Array, " B"]:
    """(sum w)^2 / sum w^2, in logs, over the samples that are not hits."""
    keep = without_hits(logits)
    log_weight = minus_log_expected_count(logits.sampled, logits.sampled_log_expected_count)
    log_weight = jnp.where(keep, log_weight, 0.0)
    nobody = jnp.zeros_like(logits.true_mask)
    log_sum = log_sum_exp(logits.true, nobody, log_weight, keep)
    log_squares = log_sum_exp(logits.true, nobody, 2 * log_weight, keep)
    return jnp.where(jnp.any(keep, axis=1), jnp.exp(2 * log_sum - log_squares), 0.0)


def _closeness(g: Float[Array, "n d"], full: Float[Array, "n d"], earlier: Float[Array, "n d"]) -> Closeness:
    return Closeness(
        square=jnp.sum(g**2),
        with_exact=jnp.sum(g * full),
        squared_error=jnp.sum((g - full) ** 2),
        with_earlier=jnp.sum((g - full) * (earlier - full)),
    )


def _closeness_by_row(full: Float[Array, "n d"], earlier: Float[Array, "n d"]) -> Closeness:
    """What every row adds to the closeness of a gradient that is 0 there."""
    nothing = jnp.zeros(full.shape[0], full.dtype)
    return Closeness(nothing, nothing, jnp.sum(full**2, axis=1), -jnp.sum(full * (earlier - full), axis=1))


def _closeness_of_rows(
    g: Float[Array, "U d"],
    ids: Int[Array, " U"],
    full: Float[Array, "n d"],
    earlier: Float[Array, "n d"],
    if_untouched: Closeness,
) -> Closeness:
    """Closeness of a gradient that is 0 except in the rows ``ids``.

    What the other rows add is summed directly. As the sum over all rows less that over ``ids`` it would be nothing but
    rounding where ``ids`` are all rows.
    """
    touched = jnp.zeros(full.shape[0], bool).at[ids].set(True, mode="drop")
    drawn = _closeness(g, gather_rows(full, ids), gather_rows(earlier, ids))
    return jax.tree.map(lambda of_rows, by_row: of_rows + jnp.sum(jnp.where(touched, 0, by_row)), drawn, if_untouched)
