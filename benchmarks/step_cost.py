"""What one training step of a large output layer costs, in one run on the same machine.

    python benchmarks/step_cost.py                (about 8 minutes on 2 cores; needs 20 GB of memory)
    python benchmarks/step_cost.py --json costs.json

All steps have the same shapes (dim 128, batch 256, 4096 shared log-uniform samples, one label, Adam) and start from the
embeddings: there is no encoder. Times are medians. What it should show:

* a row-sparse step costs the same at 10^5, 10^6 and 5 * 10^6 classes, and takes the same memory: by the
  pure functions of layer 1 (`cx.sampled_loss`, `cx.rows`) and by the modules of layer 2 (`cx.Head`, `cx.Optimizer` in
  `nnx.jit`, dispatch included), in Flax' graph mode, the same with `nnx.cached_partial`, and in its tree mode; and by
  `fit`. They are measured by turns with the compiled step of `fit` that is called without any dispatch, and their
  ratios to it are medians over the rounds, as the machine's speed may change between rounds;
* the limit beside it: the step's matrix products alone, and a pass over the bytes of the rows that it must read and
  write (vectors and both moments of Adam), so that a step stands as a multiple of what the machine could do; and where
  the rest goes: drawing, the loss of given logits, and the update of the rows, each alone;
* the compiled step with every sampler whose sets the batch shares, with the update of its state, beside that of
  `log_uniform`;
* exact Adam (`cx.rows.exact_adam`), which brings rows up to date as a dense optimizer would have moved them: at most
  twice the compiled step, and as flat;
* dense gradient: the same loss by `jax.value_and_grad` and optax on whole tables costs some 11 times as much at
  670,000 classes with large memory pages, 17 without;
* full softmax, in the faster of its two forms, at least 80 times as much;
* TensorFlow's `sampled_softmax_loss` with Adam (if it is installed: pip install -e '.[bench]'), at least 15 times.
"""

import dataclasses
import functools
import gc
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from measuring import machine, show, write
from steps import (
    BATCH,
    COMPILED,
    DIM,
    EXACT,
    LEARNING_RATE,
    NUM_SAMPLED,
    Batch,
    Cost,
    Step,
    batches,
    by_turns,
    compiled_library_step,
    exact_step,
    full_step,
    library_step,
    loop_step,
    module_step,
    pure_loss,
    pure_step,
    sampler,
)

import candax as cx
from candax.allocation import with_reused_memory
from candax.base import never
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.diagnostics.timing import in_place
from candax.recipes import common

_s = cx.samplers
_SAMPLER = "sampler: "
# Sets of NUM_SAMPLED candidates that the batch shares.
SAMPLERS: dict[str, Callable[[], cx.Sampler]] = {
    "uniform": lambda: _s.uniform(NUM_SAMPLED),
    "unigram": lambda: _s.unigram(NUM_SAMPLED, smoothing=1.0),
    "learned_unigram": lambda: _s.learned_unigram(NUM_SAMPLED),
    "learned_clusters": lambda: _s.learned_clusters(NUM_SAMPLED),
    "midx": lambda: _s.midx(NUM_SAMPLED, num_groups=1),
    "kernel": lambda: _s.kernel(NUM_SAMPLED, num_groups=1),
    "in_batch and uniform": lambda: _s.mixture([_s.in_batch(), _s.uniform(NUM_SAMPLED - BATCH)]),
    "resampled, 128 of unigram": lambda: _s.resampled(_s.unigram(NUM_SAMPLED, smoothing=1.0), 128),
    "buckets and unigram": lambda: _s.with_tail(
        _s.buckets(_s.exact_index(), NUM_SAMPLED // 32), _s.unigram(NUM_SAMPLED // 2, smoothing=1.0)
    ),
    "lsh and uniform fill": lambda: _s.lsh(
        hash=_s.simhash(), near="logit", num_tables=16, num_hashes=8, budget=NUM_SAMPLED, fill="uniform", num_groups=1
    ),
}


def products_step(num_classes: int) -> Step:
    """The step's matrix products alone: logits and their two gradients, of the same shapes and type."""
    del num_classes
    rng = np.random.default_rng(1)
    rows = jnp.asarray(rng.normal(size=(NUM_SAMPLED, DIM)), jnp.float32)

    @jax.jit
    def products(embeddings: jax.Array) -> Any:
        logits = embeddings @ rows.T
        return logits @ rows, logits.T @ embeddings

    return Step("limit: products", lambda batch: products(batch.embeddings), None)


def drawing(num_classes: int) -> Callable[[Any, int], tuple[cx.Candidates, jax.Array]]:
    """A function of a batch's labels and the step's number that draws candidates and their counts, and the labels'."""
    draws_from, classes = sampler(), cx.Classes(jnp.zeros((num_classes, 0)))
    state = draws_from.init(jax.random.key(0), classes)

    @jax.jit
    def draw(labels: jax.Array, number: int) -> tuple[cx.Candidates, jax.Array]:
        query = cx.Query(jnp.zeros((BATCH, 0)), labels, classes)
        found = draws_from.sample(state, jax.random.fold_in(jax.random.key(0), number), query)
        return found, draws_from.log_expected_count(state, found, labels.T, query)

    return draw


def traffic_step(num_classes: int) -> Step:
    """As many bytes copied as the step must read and write: its distinct rows of vectors and both moments."""
    draw, data = drawing(num_classes), batches(num_classes)
    number = [len(np.union1d(draw(batch.labels, i)[0].ids, batch.labels)) for i, batch in enumerate(data)]
    some = jnp.ones((3, round(np.mean(number)), DIM))
    # Adding reads all of it and writes all of it, as a step must.
    add = jax.jit(lambda some, x: some + x)
    return Step("limit: rows", lambda batch: add(some, batch.embeddings[0, 0]), None)


def draw_part(num_classes: int) -> Step:
    """Drawing alone: candidates, their counts and those of the labels."""
    draw, keys = drawing(num_classes), iter(range(10**9))
    return Step("part: draw", lambda batch: draw(batch.labels, next(keys)), None)


def loss_part(num_classes: int) -> Step:
    """The loss of given logits and its gradient to them: what is computed element by element."""
    rng = np.random.default_rng(1)
    sampled = jnp.asarray(rng.normal(size=(BATCH, NUM_SAMPLED)), jnp.float32)
    ids = jnp.asarray(rng.integers(num_classes, size=NUM_SAMPLED), jnp.int32)

    @jax.jit
    def loss(labels: jax.Array, sampled: jax.Array) -> Any:
        def mean(true: jax.Array, sampled: jax.Array) -> jax.Array:
            ones, counts = jnp.ones(true.shape, bool), jnp.zeros(sampled.shape)
            logits = cx.SampledLogits(
                true, jnp.zeros(true.shape), ones, sampled, counts, counts == 0, labels == ids, num_classes
            )
            return jnp.mean(cx.losses.sampled_softmax(logits))

        return jax.value_and_grad(mean, argnums=(0, 1))(sampled[:, :1], sampled)

    return Step("part: loss", lambda batch: loss(batch.labels, sampled), None)


def rows_part(num_classes: int) -> Step:
    """Rows alone: equal ids added up, and Adam on the rows of vectors and biases, read and written in place."""
    by_rows, draw, keys = cx.rows.rowwise(optax.adam(LEARNING_RATE)), drawing(num_classes), iter(range(10**9))
    tables = (jnp.zeros((num_classes, DIM)), jnp.zeros(num_classes))
    candidates = [draw(jnp.zeros((BATCH, 1), jnp.int32), i)[0].ids[0] for i in range(8)]
    grads = tuple(jnp.ones((BATCH + NUM_SAMPLED, *table.shape[1:])) for table in tables)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(states: Any, labels: jax.Array, drawn: jax.Array) -> Any:
        ids = jnp.concatenate([labels.reshape(-1), drawn])
        new = []
        for (table, state), of_rows in zip(states, grads, strict=True):
            done = by_rows.update(cx.rows.RowGradients.of(ids, of_rows, num_classes), state, table)
            new.append((done.table, done.state))
        return new

    states = [(table, by_rows.init(table)) for table in tables]

    def step(batch: Batch) -> Any:
        nonlocal states
        states = update(states, batch.labels, candidates[next(keys) % len(candidates)])
        return states

    return Step("part: rows", step, None)


def sampler_step(name: str, num_classes: int) -> Step:
    """The compiled step with another sampler, the update of its state included."""
    never_rebuilt = SAMPLERS[name]()._replace(schedule=never)
    return compiled_library_step(_SAMPLER + name, num_classes, cx.losses.sampled_softmax, never_rebuilt)


def dense_step(num_classes: int) -> Step:
    """The same sampled softmax with `jax.value_and_grad` and optax on whole tables."""
    optimizer, (tables, mean_loss) = optax.adam(LEARNING_RATE), pure_loss(num_classes)

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, batch: Batch) -> Any:
        tables, optimizer_state, number = state
        value, grads = jax.value_and_grad(mean_loss)(tables, batch, number)
        updates, optimizer_state = optimizer.update(grads, optimizer_state, tables)
        return (optax.apply_updates(tables, updates), optimizer_state, number + 1), value

    state = (tables, optimizer.init(tables), jnp.int32(0))
    compiled = update.lower(state, batches(num_classes)[0]).compile()
    return Step("dense gradient", in_place(compiled, state), compiled.memory_analysis().temp_size_in_bytes)


def tensorflow_step(num_classes: int) -> Step:
    """`tf.nn.sampled_softmax_loss` with Keras' Adam, whose step on the gathers' sparse gradients is dense."""
    import tensorflow as tf

    rng = np.random.default_rng(0)
    vectors = tf.Variable((rng.normal(size=(num_classes, DIM)) / np.sqrt(DIM)).astype(np.float32))
    biases = tf.Variable(tf.zeros(num_classes))
    optimizer = tf.keras.optimizers.Adam(LEARNING_RATE)
    optimizer.build([vectors, biases])

    @tf.function
    def update(embeddings: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.nn.sampled_softmax_loss(
                vectors, biases, labels, embeddings, NUM_SAMPLED, num_classes, remove_accidental_hits=True
            )
            loss = tf.reduce_mean(loss)
        optimizer.apply_gradients(zip(tape.gradient(loss, [vectors, biases]), [vectors, biases], strict=True))
        return loss

    return Step(
        "TensorFlow",
        lambda batch: update(tf.constant(batch.embeddings), tf.constant(batch.labels.astype(np.int64))).numpy(),
        None,
    )


def main(
    output: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    repeats: int = 40,
    classes: int = 670_000,
    samplers_alone: bool = False,
) -> None:
    """Measures all steps and prints a table.

    Args:
        output: file for the figures.
        repeats: steps behind each median (a fifth of it for the slow ones).
        classes: number of classes at which row-sparse, dense-gradient and full steps are compared.
        samplers_alone: measure the steps with other samplers only.
    """
    of_samplers = []
    for name in SAMPLERS:
        of_samplers += by_turns([library_step(10**5), sampler_step(name, 10**5)], 10**5, repeats)[1:]
        gc.collect()
    if samplers_alone:
        report(of_samplers, output)
        return
    costs = []
    cached_step = functools.partial(module_step, mode="cached")
    tree_step = functools.partial(module_step, mode="tree mode")
    parts = (draw_part, loss_part, rows_part)
    # The largest first: the program keeps what smaller tables have freed.
    for num_classes in (5 * 10**6, 10**6, 10**5):
        # Two tables with their moments at a time: four would not fit at the largest size.
        alone = (module_step, cached_step, tree_step, loop_step, exact_step)
        groups = [(pure_step, products_step, traffic_step), *((one,) for one in alone)]
        for number, group in enumerate([*groups, parts] if num_classes == 10**5 else groups):
            measured = by_turns([make(num_classes) for make in (library_step, *group)], num_classes, repeats)
            costs += measured[number > 0 :]
            gc.collect()
    few = max(3, repeats // 5)
    costs += by_turns([module_step(classes)], classes, repeats)
    slow: list[Callable[[], Step]] = [
        lambda: dense_step(classes),
        lambda: full_step(classes, DEFAULT_BLOCK_SIZE),
        lambda: full_step(classes, None),
    ]
    if importlib.util.find_spec("tensorflow") is not None:
        slow.append(lambda: tensorflow_step(classes))
    for make in slow:
        costs += by_turns([make()], classes, few)
        gc.collect()
    report(costs + of_samplers, output)


def report(costs: list[Cost], path: Path | None) -> None:
    """Prints the table and the ratios, and writes them."""
    at = {(cost.step, cost.num_classes): cost.milliseconds for cost in costs}
    of_samplers = [cost for cost in costs if cost.step.startswith(_SAMPLER)]
    others = [cost for cost in costs if cost not in of_samplers]
    sizes = sorted({number for step, number in at if step == COMPILED})
    to_compiled = {(cost.step, cost.num_classes): cost.ratio for cost in costs}
    ratios = {f"{cost.step} / {COMPILED}, {cost.num_classes:,} classes": cost.ratio for cost in of_samplers}
    for number in sizes:
        limit = at["limit: products", number] + at["limit: rows", number]
        for step in ("layer 1, pure", "layer 2, modules", "layer 2, cached", "layer 2, tree mode", "fit", EXACT):
            ratios[f"{step} / {COMPILED}, {number:,} classes"] = to_compiled[step, number]
        ratios[f"layer 2 / limit, {number:,} classes"] = at["layer 2, modules", number] / limit
    name = "layer 2, modules"
    if others:
        ratios[f"layer 2, {sizes[-1]:,} / {sizes[0]:,} classes"] = at[name, sizes[-1]] / at[name, sizes[0]]
        compared = others[-1].num_classes
        for cost in others:
            if cost.num_classes == compared and cost.step != name:
                ratios[f"{cost.step} / layer 2, {compared:,} classes"] = cost.milliseconds / at[name, compared]
    rows = [dataclasses.asdict(cost) for cost in costs]
    columns = common.columns(step="", num_classes=",", milliseconds=".2f", temporary_bytes=",")
    show(f"dim {DIM}, batch {BATCH}, {NUM_SAMPLED} samples, Adam: {machine()}", columns, rows)
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:.2f}")
    write(path, {"where": machine(), "costs": rows, "ratios": ratios})


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
