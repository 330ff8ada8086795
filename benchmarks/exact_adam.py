"""Exact Adam on rows beside dense and lazy Adam: how far off, and what a trained model comes to.

    python benchmarks/exact_adam.py             (about 12 minutes on 2 cores)
    python benchmarks/exact_adam.py --steps 300

First the largest errors of rows that were not in use for a while, against dense AdamW in float64, relative to the
length of the row plus that of its displacement. Expected: below 1e-3 for rows last updated before step 30, below 1e-5
for others.

Then labels of the standard library's files by a small network with sampled softmax, by each of three optimizers of the
tables with the same seeds: dense (optax, all rows in every step), exact and lazy. Expected: class vectors of the exact
run are those of the dense one but for rounding, which training magnifies; its figures agree in the third digit; those
of the lazy one do not. Indexes of class vectors are told of rows when these are written: the next table says how many
of their codes are not those of the rows as they should be. `exact_tuned.py` is beside it: each with its best rate.
"""

import itertools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from flax import nnx
from measuring import show

import candax as cx
from candax.allocation import with_reused_memory
from candax.recipes import common
from candax.recipes.extreme.problem import make_model
from candax.rows.missed import ExactState, plan
from candax.training.trainer import loss_of_labels

BETAS = ((0.9, 0.999), (0.9, 0.99), (0.95, 0.999), (0.9, 0.95), (0.95, 0.98))
LAST = {"early": (1, 3, 10), "late": (30, 100, 1000)}
GAPS = (1, 3, 10, 30, 100, 1000, 10000)
RATES = {
    "constant": optax.constant_schedule(1e-3),
    "warm-up": optax.linear_schedule(0.0, 1e-3, 60),
    "cosine": optax.warmup_cosine_decay_schedule(0.0, 1e-3, 30, 3000),
}
DIM, BATCH_SIZE, NUM_SAMPLED = 64, 128, 512


def largest_errors(b1: float, b2: float) -> dict[str, float]:
    """Over gradients of 1e-10 to 1, gaps, two epsilons, schedules and two weight decays."""
    rng, worst = np.random.default_rng(0), dict.fromkeys(LAST, 0.0)
    gradients = rng.normal(size=(6, 8)) * np.array([1e-10, 1e-8, 1e-6, 1e-4, 1e-2, 1.0])[:, None]
    for rate, eps, decay in itertools.product(RATES.values(), (1e-8, 1e-3), (0.0, 0.1)):
        settle = jax.jit(cx.rows.exact_adamw(rate, b1, b2, eps, decay).settle)
        rates = np.asarray(jax.vmap(rate)(jnp.arange(max(LAST["late"]) + max(GAPS))) * jnp.ones(()), np.float64)
        decays = np.cumsum([0.0, *np.log1p(-decay * rates)])
        for when, last in ((when, last) for when, steps in LAST.items() for last in steps):
            mean, square = (np.float32(of) for of in (gradients * (1 - b1**last), gradients**2 * (1 - b2**last)))
            table = np.float32(rng.normal(size=gradients.shape) * 1e-2)
            m, v, p = (of.astype(np.float64) for of in (mean, square, table))
            for step in range(last + 1, last + max(GAPS) + 1):
                m, v = b1 * m, b2 * v
                p = p - rates[step - 1] * (m / (1 - b1**step) / (np.sqrt(v / (1 - b2**step)) + eps) + decay * p)
                if step - last not in GAPS:
                    continue
                state = ExactState(
                    jnp.int32(step),
                    jnp.full(len(table), last, jnp.int32),
                    (jnp.asarray(mean), jnp.asarray(square)),
                    jnp.array([decays[step], 0.0], jnp.float32) if decay else None,
                    jnp.full(len(table), decays[last], jnp.float32) if decay else None,
                )
                found = table + np.asarray(settle(state, jnp.asarray(table))[1], np.float64)
                size = np.linalg.norm(p, axis=1) + np.linalg.norm(p - table, axis=1)
                worst[when] = max(worst[when], float(np.max(np.linalg.norm(found - p, axis=1) / size)))
    return worst


class Run(NamedTuple):
    """A trained model, the losses, and the milliseconds of each step."""

    model: Any
    losses: np.ndarray
    milliseconds: np.ndarray


KINDS: dict[str, Callable[[float], Any]] = {
    "dense": optax.adam,
    "exact": cx.rows.exact_adam,
    "lazy": optax.adam,
}


def make_step(
    kind: str, rate: float, model: Any, loss: Callable[[Any, Any], jax.Array]
) -> tuple[Any, Callable[..., Any]]:
    """An optimizer of a model by one of the kinds, and its compiled step ``step(model, optimizer, batch)``."""
    if kind == "dense":
        optimizer: Any = nnx.Optimizer(model, optax.adam(rate), wrt=nnx.Param)
        gradient: Any = nnx.value_and_grad
    else:
        optimizer = cx.Optimizer(model, optax.adam(rate), tables=KINDS[kind](rate))
        gradient = cx.value_and_grad

    @nnx.jit
    def step(model: Any, optimizer: Any, batch: Any) -> jax.Array:
        value, grads = gradient(loss)(model, batch)
        optimizer.update(model, grads)
        return value

    return optimizer, step


def of_batch(model: Any, batch: Any) -> jax.Array:
    """The loss of a model's head."""
    return loss_of_labels(model, batch)[0]


def run(
    model: Any, batches: Any, kind: str, rate: float, num_steps: int, loss: Callable[[Any, Any], jax.Array] = of_batch
) -> Run:
    """Trains by one of the optimizers."""
    optimizer, step = make_step(kind, rate, model, loss)
    losses, times = [], []
    for number in range(num_steps):
        batch = jax.device_put(batches[divmod(number, batches.batches_per_epoch)])
        started = time.perf_counter()
        losses.append(jax.block_until_ready(step(model, optimizer, batch)))
        times.append(1e3 * (time.perf_counter() - started))
    return Run(model, np.array(losses), np.array(times))


def age(dataset: cx.data.Dataset, batches: Any, rate: float, num_steps: int) -> None:
    """What indexes of class vectors hold that were told of rows when these were written, and not when they moved on."""
    lsh: dict[str, Any] = {"num_tables": 16, "num_hashes": 9, "hash": cx.samplers.simhash()}
    ivf: dict[str, Any] = {"num_centers": 128, "hm_num": 1024}
    rows = []
    pairs = {
        "LSH, 9 bits": (
            cx.samplers.lsh(budget=NUM_SAMPLED, fill="uniform", num_groups=1, **lsh),
            cx.samplers.lsh_index(**lsh),
            lambda state: state.tables.codes,
        ),
        "IVF-BQ, words of 32 bits": (
            cx.samplers.ivf_bq(NUM_SAMPLED // BATCH_SIZE, **ivf),
            cx.samplers.ivf_index(**ivf),
            lambda state: state.codes,
        ),
    }
    for (name, (sampler, index, codes)), kind in itertools.product(pairs.items(), ("exact", "lazy")):
        model = make_model(dataset, DIM, sampler, cx.losses.sampled_softmax, seed=0)
        run(model, batches, kind, rate, num_steps)
        state = model.head.state.get_value()
        classes = model.head.classes()
        ids = jnp.arange(classes.num_classes, dtype=jnp.int32)
        now = index.follow(state, jax.random.key(0), ids, classes.vectors)
        rows.append({"index": name, "tables": kind, "codes": float(jnp.mean(codes(state) != codes(now)))})
    title = f"codes that are not those of the rows as they should be, after {num_steps:,} steps"
    show(title, common.columns(index="", tables="", codes=".2%"), rows)


def compare(dataset: cx.data.Dataset, batches: Any, rate: float, num_steps: int) -> None:
    """The three optimizers at one learning rate."""
    rows, dense = [], None
    for kind in KINDS:
        sampler = cx.samplers.log_uniform(NUM_SAMPLED)
        model = make_model(dataset, DIM, sampler, cx.losses.sampled_softmax, seed=0)
        found = run(model, batches, kind, rate, num_steps)
        cx.rows.settle(model)
        vectors = np.asarray(model.head.vectors[...])
        dense = dense or (vectors, found.losses)
        row = {
            "tables": kind,
            "vectors_off": float(np.linalg.norm(vectors - dense[0]) / np.linalg.norm(dense[0])),
            "loss_off": float(np.max(np.abs(found.losses / dense[1] - 1))),
            "last_loss": float(found.losses[-100:].mean()),
            "ms_per_step": float(np.median(found.milliseconds)),
        }
        rows.append(row | cx.training.evaluate_dataset(model, dataset, batches))
    columns = common.columns(tables="", vectors_off=".1e", loss_off=".1e", last_loss=".4f")
    columns += common.columns(p_at_1=".4f", p_at_5=".4f", ms_per_step=".1f")
    show(f"{dataset.name}, {dataset.num_classes:,} classes, {num_steps:,} steps, rate {rate:g}", columns, rows)


def main(steps: tuple[int, ...] = (300, 3000), rate: float = 0.001) -> None:
    """Prints the tables.

    Args:
        steps: after which runs are compared; the first of them also ages the indexes.
        rate: learning rate of all.
    """
    rows: list[dict[str, Any]] = []
    for betas in BETAS:
        window, nodes = plan(*betas)
        rows.append({"betas": str(betas), "missed_steps": window, "nodes": nodes, **largest_errors(*betas)})
    columns = common.columns(betas="", missed_steps="", nodes="")
    columns += [
        common.Column("last updated at step 1 to 10", "early", ".1e"),
        common.Column("30 to 1000", "late", ".1e"),
    ]
    show("largest errors of rows that were not in use, against dense AdamW in float64", columns, rows)
    dataset = cx.data.python_stdlib()
    batches = cx.data.Batches(dataset.train, BATCH_SIZE, 0, flat=True)
    for number in steps:
        compare(dataset, batches, rate, number)
    age(dataset, batches, rate, steps[0])


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
