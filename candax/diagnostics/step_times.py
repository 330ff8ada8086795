"""Times of training steps of an output layer on this machine, given only its shapes and label frequencies."""

import contextlib
import functools
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx
from jaxtyping import Float

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.diagnostics.timing import compiled_by_fit
from candax.models.head import Head
from candax.training.optimizer import Optimizer

# Steps are timed with at most so many classes.
_MOST_CLASSES = 1 << 16
_FEW, _MANY = 256, 4096
_LEAST_STEPS = 3


class StepTimes(NamedTuple):
    """Milliseconds per step.

    Attributes:
        full: over all classes.
        sampled: of the static samplers, by number of samples: for one or two such numbers.
        midx: of the multi-index sampler with a shared set, by number of samples.
        notes: what was not measured, but scaled.
    """

    full: float
    sampled: Mapping[int, float]
    midx: Mapping[int, float]
    notes: tuple[str, ...]

    def of(self, num_sampled: int) -> float:
        """The time of static samplers, on the line through the measured times; never below the shortest of these."""
        sizes = sorted(self.sampled)
        first, last = self.sampled[sizes[0]], self.sampled[sizes[-1]]
        if len(sizes) == 1:
            return first
        slope = max(0.0, (last - first) / (sizes[-1] - sizes[0]))
        return max(min(first, last), first + slope * (num_sampled - sizes[0]))


class _Batch(NamedTuple):
    embeddings: np.ndarray
    labels: np.ndarray


def time_steps(
    frequency: Float[np.ndarray, " num_classes"],
    *,
    dim: int,
    batch_size: int,
    labels: int,
    seconds: float,
    device: jax.Device | None,
) -> StepTimes:
    """Compiles and times the full step, static samplers and ``midx``, with Adam, on embeddings made at random.

    Args:
        frequency: label counts; of more than 65,536 classes only that many are taken, evenly spaced by rank.
        dim: of class vectors.
        batch_size: examples.
        labels: per example.
        seconds: for all measurements together, besides compiling; at least three steps of each kind are timed.
        device: to measure on; None: the default one.

    Returns:
        The times; that of the full step scaled to all classes.
    """
    number = len(frequency)
    kept = min(number, _MOST_CLASSES)
    taken = np.sort(frequency)[::-1][np.linspace(0, number - 1, kept).astype(np.int64)]
    rng = np.random.default_rng(0)
    data = _Batch(rng.normal(size=(batch_size, dim)).astype(np.float32), _labels(rng, taken, batch_size, labels))
    sizes = sorted({min(size, max(1, kept // 2)) for size in (_FEW, _MANY)})
    # In blocks where logits of all classes would be large, as a user would.
    block_size = None if batch_size * kept <= 1 << 24 else 8192
    todo: list[tuple[str, int, Sampler | None, Loss]] = [
        ("full", kept, None, functools.partial(losses.full_softmax, block_size=block_size))
    ]
    todo += [("sampled", size, samplers.unigram(size, smoothing=1.0), losses.sampled_softmax) for size in sizes]
    todo.append(("midx", sizes[-1], samplers.midx(sizes[-1], num_groups=1), losses.sampled_softmax))
    found: dict[str, dict[int, float]] = {"full": {}, "sampled": {}, "midx": {}}
    with jax.default_device(device) if device is not None else contextlib.nullcontext():
        for kind, size, sampler, loss in todo:
            found[kind][size] = _time(taken, dim, data, sampler, loss, seconds / len(todo))
    notes: tuple[str, ...] = ()
    if kept < number:
        notes = (f"the full softmax was timed at {kept:,} classes and its time scaled to {number:,}.",)
    return StepTimes(found["full"][kept] * number / kept, found["sampled"], found["midx"], notes)


def _labels(rng: np.random.Generator, frequency: np.ndarray, batch_size: int, labels: int) -> np.ndarray:
    # Drawn by the running sum, which suits large tables. Repeats are removed: an example may have fewer labels.
    chances = np.cumsum(frequency / frequency.sum())
    found = np.searchsorted(chances, rng.random((batch_size, labels)), side="right")
    found = np.sort(np.minimum(found, len(frequency) - 1), axis=1).astype(np.int32)
    found[:, 1:][found[:, 1:] == found[:, :-1]] = -1
    return found


def _time(counts: np.ndarray, dim: int, batch: _Batch, sampler: Sampler | None, loss: Loss, seconds: float) -> float:
    """The shortest time of a step of the compiled program that ``fit`` runs: longer ones include waits for others."""
    head = Head(len(counts), dim, sampler=sampler, loss=loss, counts=counts.astype(np.float32), rngs=nnx.Rngs(0))
    optimizer = Optimizer(head, optax.adam(1e-3))

    def of(head: Any, batch: _Batch) -> Any:
        return head.loss(batch.embeddings, batch.labels)

    with warnings.catch_warnings():
        # Nothing is trained here, so nothing has to be refreshed.
        warnings.simplefilter("ignore", UserWarning)
        step, _ = compiled_by_fit((head, optimizer), of, batch)
    times: list[float] = []
    begin = time.perf_counter()
    while len(times) <= _LEAST_STEPS or time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        jax.block_until_ready(step(batch))
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[1:])
