"""Bias and variance of adaptive samplers beside static ones, at equal numbers of candidates, and what they cost.

    python benchmarks/adaptive.py                     (some 10 minutes on 2 cores)

It trains a model on python-stdlib (37,769 classes, dim 64, 1024 log-uniform candidates) and measures, by
`cx.diagnostics.diagnose`, the loss `css` on test examples with candidates of each sampler: bias and root mean square
error of log Z in nats, bias and noise of the gradient to the class vectors relative to the exact one, the effective
number of candidates, milliseconds for a draw with its logits, loss and gradients (without the optimizer, the shortest
call), and for building the sampler's state. "midx, stale" has the cells of the class vectors of --stale steps before.

Measured on 2 cores, x86-64, shared (128 candidates, one seed; error of log Z in nats, noise of the gradient, effective
number of candidates): unigram shared .25, .82, 29; log_uniform shared .22, .82, 36; midx shared .22, .69, 38; kernel
shared .52, 1.61, 14; per example: unigram .26, .33, 30; midx .16, .25, 49; kernel .67, .53, 12; lsh with uniform fill
.58, .53, 10; ivf_bq alone 3.35, 0, 45 (a bias). All figures, and what they say, are in docs/adaptive.md.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from ann_vectors import classifier, some_tests
from measuring import least_ms, show, write

import candax as cx
from candax.allocation import with_reused_memory
from candax.diagnostics.draws import gradient
from candax.recipes import common

_s = cx.samplers
# Shared by the batch ("shared") or one set per example.
METHODS: dict[str, Callable[[int], cx.Sampler]] = {
    "uniform, shared": _s.uniform,
    "log_uniform, shared": _s.log_uniform,
    "unigram, shared": functools.partial(_s.unigram, smoothing=1.0),
    "unigram": functools.partial(_s.unigram, smoothing=1.0, num_groups=None),
    "midx, shared": functools.partial(_s.midx, num_groups=1),
    "midx": _s.midx,
    "midx, shared, stale": functools.partial(_s.midx, num_groups=1),
    "midx, stale": _s.midx,
    "midx, power .75": functools.partial(_s.midx, power=0.75),
    "midx, residual": functools.partial(_s.midx, codes="residual"),
    "midx, 128 codewords": functools.partial(_s.midx, num_codewords=128),
    "kernel, shared": functools.partial(_s.kernel, num_groups=1),
    "kernel": _s.kernel,
    "kernel, positive": functools.partial(_s.kernel, features="positive"),
    "lsh": lambda number: _s.lsh(
        hash=_s.simhash(), near="logit", num_tables=16, num_hashes=8, budget=number, fill="uniform"
    ),
    "ivf_bq": lambda number: _s.ivf_bq(number, num_centers=128, hm_num=2500, num_kept=max(250, number)),
    "ivf_bq and unigram": lambda number: _s.with_tail(
        _s.ivf_bq(number // 2, num_centers=128, hm_num=2500, num_kept=max(250, number // 2)),
        _s.unigram(number // 2, smoothing=1.0),
    ),
    "buckets and unigram, shared": lambda number: _s.with_tail(
        _s.buckets(_s.exact_index(), number // 32), _s.unigram(number // 2, smoothing=1.0)
    ),
    "resampled unigram": lambda number: _s.resampled(_s.unigram(8 * number, smoothing=1.0), number),
}
COLUMNS = {
    "log_z_bias": "bias of log Z",
    "log_z_error": "error of log Z",
    "class_gradient_bias": "bias of gradient",
    "class_gradient_noise": "noise of gradient",
    "effective_sample_size": "effective S",
    "shortest_ms": "ms",
    "refresh_ms": "ms of a refresh",
}


def trained(
    steps: int, dim: int, num_examples: int, stale: int
) -> tuple[cx.Classes, cx.Classes, jax.Array, np.ndarray]:
    """The output layer of a trained model now and ``stale`` steps before, embeddings and labels of test examples."""
    dataset = cx.data.python_stdlib()
    model = classifier(dataset, dim, _s.log_uniform(1024))
    batches = cx.data.Batches(dataset.train, 256, 0)
    optimizer = cx.Optimizer(model, optax.adam(3e-3))
    cx.training.fit(model, optimizer, batches, num_steps=max(0, steps - stale), progress=False)
    before = jax.tree.map(jnp.array, model.head.classes())
    cx.training.fit(model, optimizer, batches, num_steps=min(steps, stale), progress=False)
    labelled = np.flatnonzero(np.diff(dataset.test.labels.indptr))
    batch = some_tests(dataset, labelled, num_examples, batches.max_features)
    return model.head.classes(), before, jnp.asarray(cx.training.embed(model, batch)), np.asarray(batch.labels)


def aged(make: Callable[[int], cx.Sampler], before: cx.Classes, number: int) -> cx.Sampler:
    """A sampler whose state was made from other class vectors than it draws for."""
    sampler = make(number)
    return sampler._replace(init=lambda key, classes: sampler.init(key, before))


def build_ms(sampler: cx.Sampler, classes: cx.Classes) -> float:
    """Milliseconds of a refresh, compiled."""
    state = sampler.init(jax.random.key(0), classes)
    refresh = jax.jit(sampler.refresh)
    return least_ms(lambda: refresh(state, jax.random.key(1), classes), 1)


def shortest_ms(sampler: cx.Sampler, query: cx.Query, calls: int = 20) -> float:
    """The shortest of some calls of what a training step does without its optimizer."""

    @jax.jit
    def step(state: Any, key: jax.Array) -> Any:
        (value, _), grads = gradient(sampler, cx.losses.css, query.classes.num_classes, state, key, query)
        return value, grads.params, [(rows.ids, rows.rows) for rows in grads.rows.values()]

    state = sampler.init(jax.random.key(0), query.classes)
    keys = iter(jax.random.split(jax.random.key(0), calls + 1))
    return least_ms(lambda: step(state, next(keys)), calls)


def main(
    steps: int = 600,
    dim: int = 64,
    num_examples: int = 32,
    num_sampled: tuple[int, ...] = (128,),
    num_draws: int = 32,
    methods: tuple[str, ...] = tuple(METHODS),
    stale: int = 100,
    json_file: Path | None = None,
) -> None:
    """Trains, measures and prints one table.

    Args:
        steps: of training, of 256 examples.
        dim: of class vectors.
        num_examples: of the test set, that share a batch.
        num_sampled: candidates per example.
        num_draws: of candidates for each method.
        methods: some of those above.
        stale: steps since the cells of "stale" methods were made.
        json_file: for the figures.
    """
    classes, before, embeddings, labels = trained(steps, dim, num_examples, stale)
    found: list[dict[str, Any]] = []
    columns = [common.Column("candidates", "sampler"), common.Column("S", "num_sampled")]
    columns += [common.Column(heading, name, ".3g") for name, heading in COLUMNS.items()]
    query = cx.Query(embeddings, jnp.asarray(labels), classes)
    for name in methods:
        make = functools.partial(aged, METHODS[name], before) if name.endswith("stale") else METHODS[name]
        result = cx.diagnostics.diagnose(
            classes,
            embeddings,
            labels,
            cx.diagnostics.pairs({name: make}, {"css": cx.losses.css}),
            num_sampled=num_sampled,
            num_draws=num_draws,
            key=jax.random.key(0),
            new_index=False,
        )
        refresh = build_ms(METHODS[name](num_sampled[0]), classes)
        for row in result.to_rows():
            shortest = shortest_ms(METHODS[name](row["num_sampled"]), query)
            found.append(row | {"shortest_ms": shortest, "refresh_ms": refresh, "full_ms": result.full_ms})
            print(*(column.text(found[-1]) for column in columns), flush=True)
    show(f"css, {classes.num_classes:,} classes, dim {dim}, {num_examples} examples", columns, found)
    print(f"full softmax with its gradients: {result.full_ms:.3g} ms")
    write(json_file, found)


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
