"""What a training step with ANN Softmax costs beside one over all classes, and what its retrieval finds, in one run.

    python benchmarks/ann_step.py                  (about 5 minutes on 2 cores; needs 12 GB of memory)
    python benchmarks/ann_step.py --json costs.json
    python benchmarks/ann_step.py --num-classes 100000 --codes int8 --profile      (which operations take the time)

Dim 128, batch 256, 8 groups, Adam on the rows of the head, which has no biases; no encoder. Class vectors are clustered
(`ann_vectors.py`), and the embedding of an example lies near the vector of its label, as in a model that has learned
something. The steps are those that `fit` compiles, called by turns without any dispatch, and the least times count:

* full: the softmax over all classes, in blocks and at once;
* for 1,000 and for a tenth of the classes as candidates of a group, ANN Softmax with "int8" codes, and with "rotated"
  ones where a group has 1,000: 2,000 and 2,500 codes seen (250 of them kept), which suffices for a recall of .9.

Recall is the share of the k classes of largest logit of each example (k = candidates * groups / batch, 31 for 1,000)
that are among the candidates of its group, relative to that of exact retrieval (`grouped(exact_index())`). A draw
alone is timed as well. Goals, at a relative recall of .9 or more: with 1,000 candidates at most 1/8 of the full
softmax's time at 10^5 classes and 1/80 at 10^6; with 10^4 at 10^5 at most .6. (docs/benchmarks.md has figures.)
"""

import dataclasses
import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from ann_vectors import DIM, NUM_QUERIES, make_vectors
from flax import nnx
from measuring import least_ms, machine, show, write
from operations import limits, operations, show_operations

import candax as cx
from candax.allocation import with_reused_memory
from candax.diagnostics.timing import compiled_by_fit, timed
from candax.recipes import common

NUM_GROUPS, LEARNING_RATE = 8, 1e-3


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of the table: least times, and the ratio of that of a step to the full softmax's."""

    num_classes: int
    candidates: int | None
    step: str
    milliseconds: float
    ratio: float
    draw_ms: float | None
    recall: float | None


@dataclasses.dataclass(frozen=True)
class Data:
    """A trained head's vectors, a batch of embeddings near those of their labels, and all their logits' best."""

    vectors: np.ndarray
    embeddings: np.ndarray
    labels: np.ndarray

    @classmethod
    def clustered(cls, num_classes: int) -> "Data":
        """Examples in random order; the label of each is the nearest class."""
        vectors, embeddings = make_vectors("clustered", num_classes)
        vectors /= np.sqrt(np.float32(DIM))
        labels = np.argmax(embeddings @ vectors.T - 0.5 * (vectors * vectors).sum(1), axis=1)
        return cls(vectors, embeddings, labels[:, None].astype(np.int32))


def samplers(num_classes: int, num_sampled: int, codes: tuple[str, ...]) -> dict[str, cx.Sampler]:
    """Those that are compared, by name."""
    options: dict[str, Any] = {"num_sampled": num_sampled, "num_groups": NUM_GROUPS}
    centers = max(1, min(1024, round(np.sqrt(num_classes))))
    seen = [min(num_classes, max(some, num_sampled)) for some in (2000, 2500)]
    make = functools.partial(cx.samplers.ivf_bq, num_centers=centers, **options)
    found = {"int8": make(codes="int8", hm_num=seen[0])}
    if num_sampled < 5000:
        found["rotated"] = make(codes="rotated", hm_num=seen[1], num_kept=min(seen[1], 250))
    return {name: sampler for name, sampler in found.items() if name in codes}


def compiled(data: Data, sampler: cx.Sampler | None, loss: Any) -> tuple[Callable[[], Any], Any, str]:
    """A call of the compiled step, the state of the sampler that it starts from, and the text of the program."""
    vectors = cx.rows.Table(jnp.array(data.vectors))  # a copy, which is donated
    head = cx.Head(len(data.vectors), table=vectors, sampler=sampler, loss=loss, biases=False, rngs=nnx.Rngs(0))
    state = None if sampler is None else jax.tree.map(jnp.array, head.state.get_value())
    nodes = head, cx.Optimizer(head, optax.adam(LEARNING_RATE))
    batch = (jnp.asarray(data.embeddings), jnp.asarray(data.labels))
    step, program = compiled_by_fit(nodes, lambda head, batch: head.loss(*batch), batch)
    return functools.partial(step, batch), state, program.as_text()


def recall_of(sampler: cx.Sampler, state: Any, data: Data, best: np.ndarray, repeats: int) -> tuple[float, float]:
    """The share of each example's best classes among its group's candidates, and milliseconds of a draw."""
    query = cx.Query(jnp.asarray(data.embeddings), jnp.asarray(data.labels), cx.Classes(jnp.asarray(data.vectors)))
    draw = jax.jit(sampler.sample)
    found = draw(state, jax.random.key(0), query)
    of_groups = np.where(np.asarray(found.mask), np.asarray(found.ids), -1)
    per_group = len(best) // len(of_groups)
    shares = [np.isin(mine, of_groups[i // per_group]).mean() for i, mine in enumerate(best)]
    return float(np.mean(shares)), least_ms(lambda: draw(state, jax.random.key(0), query), repeats)


def measure(num_classes: int, candidates: list[int], codes: tuple[str, ...], rounds: int, profile: bool) -> list[Row]:
    """All steps at one number of classes."""
    data = Data.clustered(num_classes)
    full = cx.losses.full_softmax
    calls = {(None, "full, in blocks"): compiled(data, None, functools.partial(full, block_size=8192))[0]}
    calls[None, "full"] = compiled(data, None, full)[0]
    drawn: dict[Any, tuple[float, float]] = {}
    texts: dict[Any, str] = {}
    logits = jax.jit(lambda embeddings, vectors: embeddings @ vectors.T)(data.embeddings, data.vectors)
    for number in candidates:
        k = cx.samplers.classes_per_example(number, NUM_QUERIES, NUM_GROUPS)
        best = np.asarray(jax.lax.top_k(logits, min(k, num_classes))[1])
        exact = cx.samplers.grouped(cx.samplers.exact_index(), num_sampled=number, num_groups=NUM_GROUPS)
        most, _ = recall_of(exact, (), data, best, 1)
        for name, sampler in samplers(num_classes, number, codes).items():
            calls[number, name], state, texts[number, name] = compiled(data, sampler, cx.losses.subset_softmax)
            recall, milliseconds = recall_of(sampler, state, data, best, rounds)
            drawn[number, name] = (recall / most, milliseconds)
    del logits
    times = timed({name: lambda i, call=call: call() for name, call in calls.items()}, rounds, warm=2)
    for name, text in texts.items() if profile else ():
        show_operations(f"{name[1]}, {num_classes:,} classes, {name[0]:,} candidates", operations(text, calls[name]))
    # The least: what else the machine does only adds.
    least = {name: float(of_step[:, 0].min()) for name, of_step in times.items()}
    full_ms = min(ms for name, ms in least.items() if name[0] is None)
    rows = []
    for name, milliseconds in least.items():
        recall, draw_ms = drawn.get(name, (None, None))
        rows.append(Row(num_classes, name[0], name[1], milliseconds, milliseconds / full_ms, draw_ms, recall))
    return rows


def report(rows: list[Row]) -> None:
    """Prints a table."""
    columns = common.columns(num_classes=",", candidates=",", step="", milliseconds=".1f")
    columns.append(common.Column("full / step", "ratio", ".1f"))
    columns += common.columns(draw_ms=".1f", recall_of_exact=".3f")
    shown = [dataclasses.asdict(row) | {"ratio": 1 / row.ratio, "recall_of_exact": row.recall} for row in rows]
    show(f"dim {DIM}, batch {NUM_QUERIES}, {NUM_GROUPS} groups, Adam: {machine()}", columns, shown)


def main(
    output: Annotated[Path | None, tyro.conf.arg(name="json")] = None,
    num_classes: tuple[int, ...] = (100_000, 1_000_000),
    candidates: tuple[int, ...] = (1_000, 10_000),
    codes: tuple[Literal["int8", "rotated"], ...] = ("int8", "rotated"),
    rounds: int = 9,
    profile: bool = False,
) -> None:
    """Measures and prints a table for each number of classes.

    Args:
        output: file for the figures.
        num_classes: sizes of the output layer.
        candidates: of a group; those above a tenth of the classes, and above 1,000 with more than 10^5 classes, are
            left out.
        codes: of the index.
        rounds: timed calls of each step.
        profile: prints which operations of the sampled steps take how long, and what simple programs reach.
    """
    rows: list[Row] = []
    for number in num_classes:
        fits = [some for some in candidates if some <= number / 10 and (some <= 1000 or number <= 200_000)]
        found = measure(number, fits, codes, rounds, profile)
        report(found)
        rows += found
        gc.collect()
    for name, most in limits().items() if profile else ():
        print(f"{most:.3g}: {name}")
    write(output, {"where": machine(), "rows": [dataclasses.asdict(row) for row in rows]})


if __name__ == "__main__":
    with_reused_memory()
    tyro.cli(main)
