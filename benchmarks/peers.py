"""A training step beside what users of optax and PyTorch would write, by turns in one process.

    python benchmarks/peers.py                          (about 5 minutes on 2 cores; needs torch for the last two)
    python benchmarks/peers.py --num-classes 500000 --json peers.json

Dim 128, batch 256, one label of log-uniform frequency, Adam at all of them:

* candax: 4096 shared log-uniform samples, sampled softmax, rows of tables alone are read and written;
* optax: `softmax_cross_entropy_with_integer_labels` of all logits, jitted, both arrays donated;
* torch: `cross_entropy` of all logits;
* torch: `AdaptiveLogSoftmaxWithLoss`, cutoffs at 2 %, 10 % and 40 % of the classes, div_value 4: another model, in
  which rare classes have vectors of 32, 8 and 2 coordinates.

What it should show: at 100,000 classes candax is some 20 times as quick as the full softmax of either framework and
level with the adaptive softmax, and its step alone does not grow with the classes (measured on two idle cores: optax
21, torch 19 and .9 times candax's time, and 100, 98 and 3.5 times at 500,000). Loss functions differ, so no loss is
compared: `candax compare` does that for samplers.
"""

import dataclasses
import functools
import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import tyro
from measuring import machine, show, write
from steps import BATCH, DIM, LEARNING_RATE, Batch, Step, by_turns, library_step

from candax.diagnostics.timing import in_place
from candax.recipes import common


def optax_step(num_classes: int) -> Step:
    """All logits in JAX, and Adam on whole arrays."""
    tx = optax.adam(LEARNING_RATE)
    params = {
        "vectors": 0.05 * jax.random.normal(jax.random.key(0), (num_classes, DIM)),
        "biases": jnp.zeros(num_classes),
    }

    def mean_loss(params: Any, batch: Batch) -> jax.Array:
        logits = batch.embeddings @ params["vectors"].T + params["biases"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels[:, 0]).mean()

    @functools.partial(jax.jit, donate_argnums=0)
    def update(state: Any, batch: Batch) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(mean_loss)(params, batch)
        updates, opt_state = tx.update(grads, opt_state)
        return (optax.apply_updates(params, updates), opt_state), value

    return Step("optax, all classes", in_place(update, (params, tx.init(params))), None)


def torch_step(num_classes: int, adaptive: bool) -> Step:
    """All logits in PyTorch, or its adaptive softmax."""
    import torch

    if adaptive:
        cutoffs = [num_classes // 50, num_classes // 10, num_classes * 2 // 5]
        head: Any = torch.nn.AdaptiveLogSoftmaxWithLoss(DIM, num_classes, cutoffs=cutoffs)
    else:
        head = torch.nn.Linear(DIM, num_classes)
    optimizer = torch.optim.Adam(head.parameters(), lr=LEARNING_RATE)

    def step(batch: Batch) -> float:
        h, labels = torch.from_numpy(batch.embeddings), torch.from_numpy(batch.labels[:, 0]).long()
        value = head(h, labels).loss if adaptive else torch.nn.functional.cross_entropy(head(h), labels)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()

    return Step("torch, adaptive softmax" if adaptive else "torch, all classes", step, None)


def main(num_classes: tuple[int, ...] = (100_000, 500_000), repeats: int = 9, json_file: Path | None = None) -> None:
    """Measures all of them.

    Args:
        num_classes: sizes.
        repeats: rounds, after three that warm up.
        json_file: to write the figures to.
    """
    torch = importlib.util.find_spec("torch") is not None
    costs = []
    for number in num_classes:
        makers = [library_step, optax_step]
        if torch:
            makers += [functools.partial(torch_step, adaptive=adaptive) for adaptive in (False, True)]
        costs += by_turns([make(number) for make in makers], number, repeats)
    rows = [dataclasses.asdict(cost) for cost in costs]
    columns = common.columns(step="", num_classes=",", milliseconds=".1f")
    columns.append(common.Column("times candax's", "ratio", ".1f"))
    named = [{**row, "step": "candax" if row["step"] == costs[0].step else row["step"]} for row in rows]
    show(f"a step, dim {DIM}, batch {BATCH}; {machine()}", columns, named)
    if not torch:
        print("torch is not installed: its two rows are left out")
    write(json_file, rows)


if __name__ == "__main__":
    tyro.cli(main)
