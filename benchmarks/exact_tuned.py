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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro
from exact_adam import KINDS, make_step, of_batch, run
from flax import nnx
from measuring import show

import candax as cx
from candax.allocation import with_reused_memory
from candax.diagnostics.timing import timed
from candax.recipes import common
from candax.recipes.extreme.problem import make_model
from candax.recipes.language.measures import log_likelihood

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
        of_batch,
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


def train(problem: Problem, kind: str, rate: float, steps: int) -> Any:
    """The model after so many steps."""
    model = run(problem.make(), problem.batches, kind, rate, steps, problem.loss).model
    cx.rows.settle(model)
    return model


def milliseconds(problem: Problem, rounds: int) -> dict[str, float]:
    """Median time of a step of each optimizer, by turns; what was compiled for the same batch before counts not."""
    of = problem.batches
    batches = [jax.device_put(of[divmod(number, of.batches_per_epoch)]) for number in range(rounds)]

    def step_of(kind: str) -> Callable[[int], Any]:
        model = problem.make()
        optimizer, step = make_step(kind, 1e-3, model, problem.loss)
        return lambda i: step(model, optimizer, batches[i % rounds])

    times = timed({kind: step_of(kind) for kind in KINDS}, rounds, warm=rounds)
    return {kind: float(np.median(of[:, 0])) for kind, of in times.items()}


def compare(problem: Problem, steps: int, rates: tuple[float, ...], rounds: int) -> None:
    """Prints a table with a line for each optimizer."""
    times = milliseconds(problem, rounds)

    @functools.cache
    def figures(kind: str, rate: float, number: int) -> tuple[float, float]:
        model = train(problem, kind, rate, number)
        return problem.measure(model, 0), problem.measure(model, 1)

    def best(kind: str, number: int, after: str) -> dict[str, float]:
        rate = max(rates, key=lambda rate: figures(kind, rate, number)[0])
        return {f"rate_{after}": rate, f"figure_{after}": figures(kind, rate, number)[1]}

    rows = []
    for kind, ms in times.items():
        in_time = round(steps * times["exact"] / ms)
        row = {"tables": kind, "ms_per_step": ms, "in_equal_time_steps": in_time}
        rows.append(row | best(kind, steps, "at_equal_steps") | best(kind, in_time, "in_equal_time"))
    columns = common.columns(tables="", ms_per_step=".1f", rate_at_equal_steps="g", figure_at_equal_steps=".4f")
    columns += common.columns(in_equal_time_steps=",", rate_in_equal_time="g", figure_in_equal_time=".4f")
    show(f"{problem.name}; {problem.figure}; {steps:,} steps, rates {', '.join(map(str, rates))}", columns, rows)


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
    for make in (labels_of_files, next_identifiers):
        compare(make(), steps, rates, rounds)


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
