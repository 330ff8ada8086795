"""Full softmax beside sampled methods on one model and data set: what retrieval and link prediction share."""

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax import losses, samplers
from candax.base import Loss, Sampler
from candax.blocks import DEFAULT_BLOCK_SIZE
from candax.experiments.contest import train_measured
from candax.pictures import save_picture
from candax.training import BatchSource, Program, TrainState
from candax.training.metrics_log import write_atomically

_MOST_BYTES = 2e9
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
class Settings:
    """What both experiments can be told; each has defaults of its own."""

    methods: tuple[MethodName, ...] = (
        "full_softmax",
        "log_uniform",
        "in_batch",
        "in_batch+uniform",
        "in_batch+unigram",
    )
    """Ways to train."""
    num_sampled: int = 1024
    """Candidates that a batch shares, besides those of its labels."""
    epochs: float = 3.0
    """Passes over the training set."""
    full_epochs: float | None = None
    """Passes of full softmax, where it would take too long; by default as many."""
    batch_size: int = 512
    """Examples a step."""
    dim: int = 128
    """Coordinates of embeddings and class vectors."""
    learning_rate: float = 5e-3
    """Of Adam."""
    curve_examples: int = 2000
    """Test examples behind every point of the curves; the table's figures are of all."""
    seed: int = 0
    """Of the model's initial values, the order of the batches and the candidates."""

    def check(self) -> None:
        """Raises ValueError for settings out of range."""
        for name in ("num_sampled", "batch_size", "dim", "curve_examples"):
            if getattr(self, name) < 1:
                raise ValueError(f"expected --{name.replace('_', '-')} of 1 or more, got {getattr(self, name)}.")
        for name in ("epochs", "full_epochs", "learning_rate"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"expected --{name.replace('_', '-')} above 0, got {value}.")
        if self.seed < 0 or not self.methods:
            raise ValueError(f"expected --seed of 0 or more and one of --methods, got {self.seed} and {self.methods}.")


def _full_softmax(batch_size: int, num_classes: int) -> Callable[..., Any]:
    """All logits at once where they fit, which is a little faster, else in blocks."""
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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One method: its final figures, and its curve of (epochs, seconds, score)."""

    method: str
    epochs: float
    ms_per_step: float
    speedup_over_full: float | None
    seconds: float
    figures: dict[str, float]
    curve: list[tuple[float, float, float]]


def run(
    settings: Settings,
    num_classes: int,
    *,
    program_of: Callable[[Sampler | None, Callable[..., Any]], Program],
    batches: BatchSource,
    on_the_way: Callable[[Program, TrainState], dict[str, float]],
    at_end: Callable[[Program, TrainState], dict[str, float]],
    score: str,
    out: Path,
) -> list[Outcome]:
    """Trains every method on the same batches and measures all alike.

    Args:
        settings: methods, in this order, and numbers.
        num_classes: of the data.
        program_of: makes a program of a sampler and a loss.
        batches: of the training set.
        on_the_way: measures a part of what is for testing, for the curve.
        at_end: measures all.
        score: which of the figures the curve is of.
        out: folder, where results.json grows with every method.

    Returns:
        One outcome a method; speed-ups are None without full softmax among them.
    """
    outcomes: list[Outcome] = []
    for method in settings.methods:
        if method == "full_softmax":
            program = program_of(None, _full_softmax(settings.batch_size, num_classes))
        else:
            program = program_of(*METHODS[method](settings.num_sampled))
        asked = settings.full_epochs if method == "full_softmax" else None
        number = max(1, round((asked or settings.epochs) * batches.batches_per_epoch))
        measured = train_measured(
            program,
            batches,
            number,
            seed=settings.seed,
            on_the_way=on_the_way,
            at_end=at_end,
            score=score,
            description=method,
        )
        epochs_a_step = 1 / batches.batches_per_epoch
        curve = [(step * epochs_a_step, seconds, value) for step, seconds, value in measured.curve]
        ms = 1e3 * measured.seconds_per_step
        outcomes.append(Outcome(method, number * epochs_a_step, ms, None, measured.seconds, measured.final, curve))
        # After every method: a long run that is cut off leaves what it has.
        _write(outcomes, out)
    full = next((outcome.ms_per_step for outcome in outcomes if outcome.method == "full_softmax"), None)
    if full is None:
        return outcomes
    return [
        dataclasses.replace(outcome, speedup_over_full=full / max(outcome.ms_per_step, 1e-9)) for outcome in outcomes
    ]


def _write(outcomes: Sequence[Outcome], out: Path, **about: Any) -> None:
    results = {**about, "methods": [dataclasses.asdict(outcome) for outcome in outcomes]}
    write_atomically(out / "results.json", json.dumps(results, indent=1, default=str) + "\n")


def report(
    title: str,
    outcomes: Sequence[Outcome],
    columns: dict[str, str],
    settings: Settings,
    data: dict[str, Any],
    out: Path,
    picture: str,
    score: str,
) -> None:
    """Prints a table, writes results.json and draws the curves against seconds and against epochs.

    Args:
        title: of table and picture.
        outcomes: from ``run``.
        columns: figure -> heading.
        settings: written beside the results.
        data: sizes of the data set, written too.
        out: folder.
        picture: name of the picture's file.
        score: what the curves show.
    """
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("method", no_wrap=True)
    for heading in (*columns.values(), "epochs", "ms/step", "speed-up", "sec."):
        table.add_column(heading, justify="right", no_wrap=True)
    for outcome in outcomes:
        speedup = outcome.speedup_over_full
        table.add_row(
            outcome.method,
            *(f"{outcome.figures[figure]:.3f}" for figure in columns),
            f"{outcome.epochs:.1f}",
            f"{outcome.ms_per_step:.1f}",
            "-" if speedup is None else f"{speedup:.1f}",
            f"{outcome.seconds:.0f}",
        )
    console = Console()
    console.print(table)
    _write(outcomes, out, data=data, settings=dataclasses.asdict(settings))
    with save_picture(out / picture, columns=2, size=(13, 5.5), share_y=True) as axes:
        for i, outcome in enumerate(outcomes):
            epochs, seconds, values = zip(*outcome.curve, strict=True)
            full = outcome.method == "full_softmax"
            look: dict[str, Any] = {"color": "black", "linewidth": 2.5} if full else {"color": f"C{i}"}
            axes[0].plot(seconds, values, marker=".", label=outcome.method.replace("_", " "), **look)
            axes[1].plot(epochs, values, marker=".", **look)
        axes[0].set(xlabel="training time in seconds (log scale)", ylabel=score, xscale="log")
        axes[1].set(xlabel="epochs")
        axes[0].figure.suptitle(title)
        axes[0].figure.legend(loc="outside lower center", ncols=5, fontsize="small")
    console.print(f"wrote {out / 'results.json'} and {out / picture}")
