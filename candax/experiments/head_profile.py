"""What the parts of a training step's work on the head cost, each by itself."""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from candax.base import Classes, Loss, Query, SampledLogits, Sampler
from candax.cosines import as_scored
from candax.experiments.drawn import Drawn, draw_rows, score_rows
from candax.losses.full import all_classes_as_candidates
from candax.rows import Rowwise, gather_rows, rowwise
from candax.training import Program

PARTS = ("retrieval", "forward", "loss_forward", "loss_backward", "backward", "update", "build")


@dataclasses.dataclass(frozen=True)
class Profile:
    """One method: milliseconds of each of ``PARTS`` and of a whole step; bytes of a step's scratch and of the state."""

    method: str
    milliseconds: dict[str, float]
    ms_per_step: float
    scratch_bytes: int
    state_bytes: int


def profile(
    method: str,
    program: Program,
    sampler: Sampler | None,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batch: Any,
    *,
    period: int,
    repeats: int,
) -> Profile:
    """Times the parts and a whole step.

    Args:
        method: its name.
        program: of a model whose head has no biases.
        sampler: that of the program; None: all classes are scored.
        loss: on ``SampledLogits``; that of the program, or what its loss over all classes is made of.
        optimizer: that of the program.
        batch: to time with.
        period: steps between two builds of the sampler's state.
        repeats: timings behind each median.

    Returns:
        A ``Profile``.
    """
    state = program.init(0)
    milliseconds = dict.fromkeys(PARTS, 0.0)
    clock = functools.partial(_median_ms, repeats=repeats)
    classes, labels = program.classes(state), jnp.asarray(batch.labels)
    embeddings = as_scored(program.embed(state, batch), classes.normalized)
    query = Query(embeddings, labels, classes)
    key, drawn = jax.random.key(0), None
    if sampler is not None:
        retrieve = jax.jit(functools.partial(draw_rows, sampler))
        milliseconds["retrieval"], drawn = clock(retrieve, state.sampler, key, query)

    forward = jax.jit(functools.partial(_forward, program.num_classes))
    milliseconds["forward"], (logits, to_rows, rest) = clock(forward, embeddings, classes, labels, drawn)
    milliseconds["loss_forward"], to_logits = clock(jax.jit(functools.partial(_loss, loss)), logits, rest)
    backward = jax.jit(lambda vjp, gradient: vjp(gradient))
    milliseconds["loss_backward"], (to_sampled,) = clock(backward, to_logits, jnp.float32(1))
    milliseconds["backward"], (_, row_grads) = clock(backward, to_rows, to_sampled)
    ids = None if drawn is None else drawn.ids
    update = jax.jit(functools.partial(_update, optimizer, rowwise(optimizer), sampler), donate_argnums=(0, 1, 2))
    # Copies: the state is timed as a whole below.
    own = jax.tree.map(jnp.array, (classes.vectors, rowwise(optimizer).init(classes.vectors), state.sampler))
    # Donated tables of a query cannot be read: what follows rows gets the others' alone.
    without_table = dataclasses.replace(query, classes=dataclasses.replace(classes, vectors=jnp.zeros((0, 1))))
    arguments = (row_grads, ids, key, without_table)
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        own = jax.block_until_ready(update(*own, *arguments))
        times.append(1e3 * (time.perf_counter() - start))
    milliseconds["update"] = statistics.median(times[1:])
    del own, logits, to_rows, rest, to_logits, to_sampled, row_grads, arguments, query, classes, drawn

    compiled = program.step.lower(state, batch).compile()  # type: ignore[attr-defined]
    analysis = compiled.memory_analysis()
    times = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        state, value = compiled(state, batch)
        jax.block_until_ready((state, value))
        times.append(1e3 * (time.perf_counter() - start))
    ms_per_step = statistics.median(times[1:])
    if sampler is not None and any(program.schedule(step) for step in range(1, 2 * period + 1)):
        build = program.refresh.lower(state).compile()  # type: ignore[attr-defined]
        start = time.perf_counter()
        state = jax.block_until_ready(build(state))
        milliseconds["build"] = 1e3 * (time.perf_counter() - start) / period
    size = sum(
        leaf.nbytes for leaf in jax.tree.leaves((state.tables, state.nodes[1].table_states.get_value(), state.sampler))
    )
    return Profile(method, milliseconds, ms_per_step, analysis.temp_size_in_bytes, size)


def _median_ms(function: Callable[..., Any], *arguments: Any, repeats: int) -> tuple[float, Any]:
    """Median time and the result; the first call, which compiles, does not count."""
    result = jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times), result


def _forward(
    num_classes: int,
    embeddings: Float[Array, "B dim"],
    classes: Classes,
    labels: Int[Array, "B T"],
    drawn: Drawn | None,
) -> tuple[tuple[Array, Array], Any, SampledLogits]:
    """True and sampled logits, the way back to embeddings and rows, and the rest of what a loss sees."""

    def scored(embeddings: Array, rows: Array) -> tuple[tuple[Array, Array], SampledLogits]:
        if drawn is None:
            logits = all_classes_as_candidates(embeddings, labels, dataclasses.replace(classes, vectors=rows))
        else:
            logits = score_rows(drawn, embeddings, labels, rows, None, num_classes=num_classes)
        return (logits.true, logits.sampled), logits

    rows = classes.vectors if drawn is None else gather_rows(classes.vectors, drawn.ids)
    return jax.vjp(scored, embeddings, rows, has_aux=True)


def _loss(loss: Loss, logits: tuple[Array, Array], rest: SampledLogits) -> Any:
    """The way back from the mean loss to the logits, with what it remembers."""

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
    ids: Int[Array, "U"] | None,
    key: Any,
    query: Query,
) -> tuple[Array, Any, Any]:
    if ids is None or sampler is None:
        updates, optimizer_state = optimizer.update(grads, optimizer_state, table)
        return optax.apply_updates(table, updates), optimizer_state, sampler_state
    done = by_rows.update(grads, optimizer_state, table, ids)
    return done.table, done.state, sampler.update(sampler_state, key, query, ids, done.rows)
