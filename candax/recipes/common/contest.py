"""Full softmax beside sampled methods on one model and data set: what retrieval and link prediction share."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.recipes.common.report import Column, Panel, curves, over
from candax.recipes.common.settings import Count, Positive, Settings
from candax.recipes.common.study import Method
from candax.recipes.common.training import Training

_MOST_BYTES = 2e9
# Sizes for --quick.
QUICK_CONTEST = {"epochs": 0.02, "dim": 16, "batch_size": 32, "num_sampled": 16}
MethodName: TypeAlias = Literal[
    "full_softmax",
    "uniform",
    "log_uniform",
    "unigram",
    "in_batch",
    "in_batch+uniform",
    "in_batch+unigram",
    "in_batch+unigram,css",
    "lsh+unigram,css",
]


@dataclasses.dataclass(frozen=True)
class Contest(Settings):
    """What a contest of methods can be told."""

    methods: tuple[MethodName, ...] = (
        "full_softmax",
        "log_uniform",
        "in_batch",
        "in_batch+uniform",
        "in_batch+unigram",
    )
    """Ways to train."""
    num_sampled: Count = 1024
    """Candidates that a batch shares, besides those of its labels."""
    epochs: Positive = 3.0
    """Passes over the training set."""
    full_epochs: Positive | None = None
    """Passes of full softmax, where it would take too long; by default as many."""
    batch_size: Count = 512
    """Examples per step."""
    dim: Count = 128
    """Coordinates of embeddings and class vectors."""
    learning_rate: Positive = 5e-3
    """Of Adam."""
    curve_examples: Count = 2000
    """Test examples behind every point of the curves; the table's figures are of all."""

    def check(self) -> None:
        """See ``Settings``."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")


def full_softmax(batch_size: int, num_classes: int) -> Callable[..., Any]:
    """The loss: all logits at once where they fit, which is a little faster, else in blocks."""
    fits = 3 * 4 * batch_size * num_classes < _MOST_BYTES
    return losses.full_softmax if fits else functools.partial(losses.full_softmax, block_size=DEFAULT_BLOCK_SIZE)


def _in_batch_and(sampler: Sampler) -> Sampler:
    return samplers.mixture([samplers.in_batch(), sampler])


def _unigram(num_sampled: int) -> Sampler:
    # Smoothed: what is nobody's answer in training must be pushed down too.
    return samplers.unigram(num_sampled, smoothing=1.0)


def _lsh_with_tail(num_sampled: int) -> Sampler:
    # Half found by hashing near the largest logits and summed as they are, half drawn from the rest.
    half = max(1, num_sampled // 2)
    head = samplers.lsh(
        "embedding",
        hash=samplers.simhash(),
        near="logit",
        num_tables=16,
        num_hashes=9,
        budget=half,
        fill=None,
        num_groups=1,
        update_every=None,
        schedule=samplers.exponential_schedule(50),
    )
    return samplers.with_tail(head, _unigram(half))


# Each from the number of candidates that a batch shares; full softmax is the other one.
METHODS: dict[MethodName, Callable[[int], tuple[Sampler, Loss]]] = {
    "uniform": lambda number: (samplers.uniform(number), losses.sampled_softmax),
    "log_uniform": lambda number: (samplers.log_uniform(number), losses.sampled_softmax),
    "unigram": lambda number: (_unigram(number), losses.sampled_softmax),
    "in_batch": lambda number: (samplers.in_batch(), losses.sampled_softmax),
    "in_batch+uniform": lambda number: (_in_batch_and(samplers.uniform(number)), losses.sampled_softmax),
    "in_batch+unigram": lambda number: (_in_batch_and(_unigram(number)), losses.sampled_softmax),
    "in_batch+unigram,css": lambda number: (_in_batch_and(_unigram(number)), losses.css),
    "lsh+unigram,css": lambda number: (_lsh_with_tail(number), losses.css),
}


def entrants(contest: Contest, training: Training, num_classes: int) -> list[Method]:
    """The methods of a contest, each trained on the same problem.

    Args:
        contest: names the methods, in this order, and has their numbers.
        training: the problem.
        num_classes: of the data.

    Returns:
        The methods, for a ``Study``.
    """
    found = []
    for name in contest.methods:
        if name == "full_softmax":
            pair: tuple[Sampler | None, Any] = None, full_softmax(contest.batch_size, num_classes)
        else:
            pair = METHODS[name](contest.num_sampled)
        epochs = contest.full_epochs if name == "full_softmax" else None
        num_steps = max(1, round((epochs or contest.epochs) * training.batches.batches_per_epoch))
        found.append(Method({"method": name}, training.by(*pair, name, num_steps=num_steps)))
    return found


def contest_columns(figures: Mapping[str, str]) -> tuple[Column, ...]:
    """The table's columns, from the names of figures and their headings."""
    return (
        Column("method", "method"),
        *(Column(heading, name, ".3f") for name, heading in figures.items()),
        Column("ms/step", "ms_per_step", ".1f"),
        Column("speed-up", "speedup", ".1f", over("ms_per_step")),
        Column("sec.", "seconds", ".0f"),
    )


def contest_panels(score: str, meaning: str) -> tuple[Panel, ...]:
    """A score over the time and over the passes of training."""
    time = {"xlabel": "training time in seconds (log scale)", "xscale": "log", "ylabel": meaning}
    return (
        Panel(curves("seconds", score, marker="."), time),
        Panel(curves("epoch", score, marker="."), {"xlabel": "epochs", "ylabel": meaning}),
    )
