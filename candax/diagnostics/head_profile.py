"""What the parts of a training step's work on the head cost, each by itself."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float, Int

from candax.base import Candidates, Classes, KeyArray, Loss, Query, SampledLogits, Sampler, State
from candax.cosines import as_scored
from candax.diagnostics.timing import compiled_by_fit, in_place, milliseconds
from candax.losses.full import all_classes_as_candidates
from candax.models import Classifier
from candax.models.scoring import score
from candax.rows import Rowwise, gather_rows, rowwise, unique_rows
from candax.training import embed
from candax.training.optimizer import Optimizer
from candax.training.trainer import loss_of_labels

PARTS = ("retrieval", "forward", "loss_forward", "loss_backward", "backward", "update", "build")


@dataclasses.dataclass(frozen=True)
class Profile:
    """Milliseconds of each of ``PARTS`` and of a whole step; bytes of a step's scratch and of the state."""

    milliseconds: dict[str, float]
    ms_per_step: float
    scratch_bytes: int
    state_bytes: int


def profile(
    model: Classifier, optimizer: Optimizer, loss: Loss, batch: Any, *, period: int = 1, repeats: int = 5
) -> Profile:
    """Times the parts and a whole step. Model and optimizer cannot be used afterwards.

    Args:
        model: its head must have no biases; if the head has no sampler, all classes are scored.
        optimizer: of the model, with one transformation for all parameters.
        loss: on ``SampledLogits``: that of the head, or the one that its loss over all classes is made from.
        batch: to time with.
        period: steps between two builds of the sampler's state.
        repeats: timings behind each median.

    Returns:
        A ``Profile``.
    """
    head, tx = model.head, optimizer.tx
    sampler, state = head.sampler, () if head.state is None else head.state.get_value()
    ms = dict.fromkeys(PARTS, 0.0)

    def clock(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
        spent = float(np.median(milliseconds(lambda: function(*arguments), repeats)))
        return spent, jax.block_until_ready(function(*arguments))

    classes, labels = head.classes(), jnp.asarray(batch.labels)
    embeddings = as_scored(embed(model, batch), classes.normalized)
    query = Query(embeddings, labels, classes)
    key, drawn = jax.random.key(0), None
    if sampler is not None:
        retrieve = jax.jit(functools.partial(_draw, sampler))
        ms["retrieval"], drawn = clock(retrieve, state, key, query)

    forward = jax.jit(functools.partial(_forward, head.num_classes))
    ms["forward"], (logits, to_rows, rest) = clock(forward, embeddings, classes, labels, drawn)
    ms["loss_forward"], to_logits = clock(jax.jit(functools.partial(_loss, loss)), logits, rest)
    backward = jax.jit(lambda vjp, gradient: vjp(gradient))
    ms["loss_backward"], (to_sampled,) = clock(backward, to_logits, jnp.float32(1))
    ms["backward"], (_, row_grads) = clock(backward, to_rows, to_sampled)
    ids = None if drawn is None else drawn.ids
    update = jax.jit(functools.partial(_update, tx, rowwise(tx), sampler), donate_argnums=(0, 1, 2))
    # The table is donated, so the query must not hold it too: a sampler's update reads the new rows only, and of the
    # query's classes no more than their number. Rows without coordinates leave that, and counts, as they are.
    bare = dataclasses.replace(classes, vectors=jnp.zeros((head.num_classes, 0)))
    without_table = dataclasses.replace(query, classes=bare)
    # Copies, which are donated: a whole step is timed with the originals below.
    own = jax.tree.map(jnp.array, (classes.vectors, rowwise(tx).init(classes.vectors), state))
    updated = in_place(lambda own, grads: (update(*own, grads, ids, key, without_table),) * 2, own)
    ms["update"] = clock(updated, row_grads)[0]
    del own, updated, logits, to_rows, rest, to_logits, to_sampled, query, drawn

    if sampler is not None and any(sampler.schedule(step) for step in range(1, 2 * period + 1)):
        # Once: the build of a graph or of a forest takes long.
        build = jax.jit(sampler.refresh).lower(state, key, classes).compile()
        start = time.perf_counter()
        jax.block_until_ready(build(state, key, classes))
        ms["build"] = 1e3 * (time.perf_counter() - start) / period
    size = sum(leaf.nbytes for leaf in jax.tree.leaves((classes, optimizer.table_states.get_value(), state)))
    del classes, state
    graph, arrays = nnx.split((model, optimizer))
    # Copies, because a step donates its arrays, and some may be in two places.
    nodes = nnx.merge(graph, jax.tree.map(jnp.array, arrays))
    step, program = compiled_by_fit(nodes, loss_of_labels, batch)
    return Profile(ms, clock(step, batch)[0], program.memory_analysis().temp_size_in_bytes, size)


class _Drawn(NamedTuple):
    """Candidates, and where the rows of labels and candidates lie among the distinct rows ``ids``."""

    candidates: Candidates
    true_log_expected_count: Float[Array, "B T"]
    ids: Int[Array, " n"]
    positions: Int[Array, " m"]


def _draw(sampler: Sampler, state: State, key: KeyArray, query: Query) -> _Drawn:
    candidates = sampler.sample(state, key, query)
    true_ids = jnp.maximum(query.labels, 0).reshape(len(candidates.ids), -1)
    count = sampler.log_expected_count(state, candidates, true_ids, query).reshape(query.labels.shape)
    sampled_ids = jnp.where(candidates.mask, candidates.ids, -1)
    both = jnp.concatenate([query.labels.reshape(-1), sampled_ids.reshape(-1)])
    unique = unique_rows(both, query.classes.num_classes)
    return _Drawn(candidates, count, unique.ids, unique.positions)


def _score(drawn: _Drawn, embeddings: Array, labels: Array, rows: Array, num_classes: int) -> SampledLogits:
    # One gather, so that the gradients are one scatter.
    true, sampled = jnp.split(rows[drawn.positions], [labels.size])
    true = true.reshape(*labels.shape, -1)
    return score(
        jnp.einsum("bd,btd->bt", embeddings, true, preferred_element_type=jnp.float32),
        embeddings,
        labels,
        drawn.candidates,
        drawn.true_log_expected_count,
        sampled.reshape(*drawn.candidates.ids.shape, -1),
        None,
        num_classes=num_classes,
    )


def _forward(
    num_classes: int,
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    labels: Int[Array, "B T"],
    drawn: _Drawn | None,
) -> tuple[tuple[Array, Array], Any, SampledLogits]:
    """True and sampled logits, their vjp to embeddings and rows, and the rest of what a loss sees."""

    def scored(embeddings: Array, rows: Array) -> tuple[tuple[Array, Array], SampledLogits]:
        embeddings = as_scored(embeddings, classes.normalized)
        if drawn is None:
            logits = all_classes_as_candidates(embeddings, labels, dataclasses.replace(classes, vectors=rows))
        else:
            logits = _score(drawn, embeddings, labels, as_scored(rows, classes.normalized), num_classes)
        return (logits.true, logits.sampled), logits

    rows = classes.vectors if drawn is None else gather_rows(classes.vectors, drawn.ids)
    return jax.vjp(scored, embeddings, rows, has_aux=True)


def _loss(loss: Loss, logits: tuple[Array, Array], rest: SampledLogits) -> Any:
    """The vjp of the mean loss to the logits, with its residuals."""

    def mean(logits: tuple[Array, Array]) -> Array:
        return jnp.mean(loss(dataclasses.replace(rest, true=logits[0], sampled=logits[1])))

    return jax.vjp(mean, logits)[1]


def _update(
    optimizer: optax.GradientTransformation,
    by_rows: Rowwise,
    sampler: Sampler | None,
    table: Float[Array, "num_classes dim"],
    optimizer_state: Any,
    sampler_state: Any,
    grads: Float[Array, "U dim"],
    ids: Int[Array, " U"] | None,
    key: Any,
    query: Query,
) -> tuple[Array, Any, Any]:
    if ids is None or sampler is None:
        updates, optimizer_state = optimizer.update(grads, optimizer_state, table)
        return optax.apply_updates(table, updates), optimizer_state, sampler_state
    done = by_rows.update(grads, optimizer_state, table, ids)
    return done.table, done.state, sampler.update(sampler_state, key, query, ids, done.rows)
