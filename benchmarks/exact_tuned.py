"""Dense, exact and lazy Adam of tables, each with the learning rate that is best for it: at equal steps, in equal time.

    python benchmarks/exact_tuned.py            (about 25 minutes on 2 cores)
    python benchmarks/exact_tuned.py --steps 20 --rates 0.001 --rounds 3

Two problems on Python's standard library, both with sampled softmax and 512 log-uniform candidates:

* labels of functions: a small network, 37,769 classes of dim 64, batches of 128 labels; precision of the five best;
* next identifiers: a GRU of 128 units, 22,606 words of dim 100, one table for input and output, batches of 64
  sentences; exact log-likelihood a word.

Each optimizer tries the same rates for the same number of steps, and is measured on one half of what was held out by
the rate that is best on the other half. Times of steps are medians over rounds in which all three make one step by
turns. In equal time: the same rates, with as many steps as the others make while exact Adam makes its own.
Expected: dense and exact are one but for rounding; lazy Adam is ahead on identifiers, and nobody is on labels.
"""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from exact_adam import KINDS, make_step
from flax import nnx
from rich.console import Console
from rich.table import Table

import candax as cx
from candax.allocation import with_reused_memory
from candax.recipes.extreme.problem import make_model
from candax.recipes.language.measures import log_likelihood
from candax.training.trainer import loss_of_labels

NUM_SAMPLED = 512


class Problem(NamedTuple):
    """What is learned.

    Attributes:
        name: of it.
        figure: its figure of quality; the larger, the better.
        make: a new model.
        batches: of the training examples.
        loss: ``loss(model, batch)``.
        measure: ``measure(model, half)``, on one half of what was held out.
    """

    name: str
    figure: str
    make: Callable[[], Any]
    batches: Any
    loss: Callable[[Any, Any], jax.Array]
    measure: Callable[[Any, int], float]


def labels_of_files() -> Problem:
    """Labels of the standard library's files, by a small network."""
    dataset = cx.data.python_stdlib()
    halves = np.array_split(np.random.default_rng(0).permutation(len(dataset.test)), 2)
    batches = cx.data.Batches(dataset.train, 128, 0, flat=True)

    def measure(model: Any, half: int) -> float:
        return cx.training.evaluate_dataset(model, dataset, batches, rows=np.sort(halves[half]))["p_at_5"]

    return Problem(
        f"{dataset.name}: labels of functions, {dataset.num_classes:,} classes",
        "P@5",
        lambda: make_model(dataset, 64, cx.samplers.log_uniform(NUM_SAMPLED), cx.losses.sampled_softmax, seed=0),
        batches,
        lambda model, batch: loss_of_labels(model, batch)[0],
        measure,
    )


def next_identifiers() -> Problem:
    """The next identifier in paragraphs of code, by a recurrent network whose words are one table with its classes."""
    corpus = cx.data.python_corpus(max_length=23)
    order = np.random.default_rng(0).permutation(len(corpus))
    parts = [_sentences(corpus, np.sort(part)) for part in np.split(order, [2000, 4000])]
    train = parts[2]

    def make() -> Any:
        rngs = nnx.Rngs(0)
        words = cx.Embed(corpus.num_classes + 1, 100, rngs=rngs)  # one more: the start of a sentence
        head = cx.Head(
            corpus.num_classes,
            table=words,
            sampler=cx.samplers.log_uniform(NUM_SAMPLED),
            loss=cx.losses.sampled_softmax,
            counts=train.counts,
            biases=False,
            rngs=rngs,
        )
        return cx.models.Classifier(cx.models.GRULanguageModel(head, 128, rngs=rngs), head)

    return Problem(
        f"{corpus.name}: next identifiers, {corpus.num_classes:,} classes",
        "nats a word",
        make,
        cx.data.SentenceBatches(train, 64, 0),
        lambda model, batch: model.head.loss(model(batch), batch.labels),
        lambda model, half: log_likelihood(model, parts[half], np.arange(len(parts[half])), 100),
    )


def _sentences(corpus: cx.data.Corpus, chosen: np.ndarray) -> cx.data.Corpus:
    """Some of the sentences, the words keeping their ids."""
    ids = [corpus.ids[corpus.offsets[i] : corpus.offsets[i + 1]] for i in chosen]
    offsets = np.concatenate([[0], np.cumsum(corpus.lengths[chosen])])
    return cx.data.Corpus(corpus.name, corpus.words, np.concatenate(ids), offsets.astype(np.int64))


def each_batch(problem: Problem) -> Iterator[Any]:
    """In the order of training, without end."""
    for number in itertools.count():
        yield jax.device_put(problem.batches[divmod(number, problem.batches.batches_per_epoch)])


def train(problem: Problem, kind: str, rate: float, steps: int) -> Any:
    """The model after so many steps."""
    model = problem.make()
    optimizer, step = make_step(kind, rate, model, problem.loss)
    for batch in itertools.islice(each_batch(problem), steps):
        step(model, optimizer, batch)
    cx.rows.settle(model)
    return model


def milliseconds(problem: Problem, rounds: int) -> dict[str, float]:
    """Median time of a step of each optimizer, by turns; what was compiled for the same batch before counts not."""
    made = {}
    for kind in KINDS:
        model = problem.make()
        made[kind] = (model, *make_step(kind, 1e-3, model, problem.loss))
    batches = list(itertools.islice(each_batch(problem), rounds))
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for measured, batch in itertools.product((False, True), batches):
        for kind, (model, optimizer, step) in made.items():
            started = time.perf_counter()
            jax.block_until_ready(step(model, optimizer, batch))
            if measured:
                times[kind].append(1e3 * (time.perf_counter() - started))
    return {kind: float(np.median(of)) for kind, of in times.items()}


def compared(problem: Problem, steps: int, rates: tuple[float, ...], rounds: int) -> Table:
    """A line for each optimizer."""
    table = Table(title=f"{problem.name}; {problem.figure}; rates {', '.join(f'{rate:g}' for rate in rates)}")
    table.add_column("tables")
    for name in ("ms/step", "rate", f"after {steps:,} steps", "in equal time: steps", "rate", "figure"):
        table.add_column(name, justify="right")
    times = milliseconds(problem, rounds)

    @functools.cache
    def figures(kind: str, rate: float, number: int) -> tuple[float, float]:
        model = train(problem, kind, rate, number)
        return problem.measure(model, 0), problem.measure(model, 1)

    def best(kind: str, number: int) -> tuple[str, str]:
        rate = max(rates, key=lambda rate: figures(kind, rate, number)[0])
        return f"{rate:g}", f"{figures(kind, rate, number)[1]:.4f}"

    for kind in KINDS:
        in_time = round(steps * times["exact"] / times[kind])
        table.add_row(kind, f"{times[kind]:.1f}", *best(kind, steps), f"{in_time:,}", *best(kind, in_time))
    return table


def main(
    steps: int = 1000,
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03),
    rounds: int = 40,
) -> None:
    """Prints a table for each problem.

    Args:
        steps: of each run; in equal time, those of exact Adam.
        rates: learning rates that each optimizer may choose from.
        rounds: in which steps are timed.
    """
    console = Console(width=120)
    for make in (labels_of_files, next_identifiers):
        console.print(compared(make(), steps, rates, rounds))


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
