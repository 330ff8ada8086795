"""ANN Softmax, tables 1 and 2 and figure 4: what retrieval finds, and what of it shows in accuracy.

    python -m candax.experiments.ann_recall

On generated identities, with the softmax of scaled cosines: top-1 accuracy on new samples of the training classes, and
recall, the share of an example's k best classes that retrieval finds (k by equation 8), as the mean over six points of
the training. Table 1: IVF-BQ, a hashing forest and LSH at several sizes, beside all classes and random ones (Partial
FC). Table 2: groups a batch, and k with them. Figure 4: T (steps between builds of the index; the last one: never),
number of centres, HM_num and k', one at a time, the others as the paper says.

The paper's claims: accuracy follows recall (IVF-BQ .856, hashing forest .394, LSH .313); it grows with the number of
groups; it does not depend on T until the index is never built again, nor on the number of centres; it grows with HM_num
and little with k'.

Expected with --epsilon 1e-8 (30 minutes on 2 busy cores, a third of them the hashing forest; one seed): all classes
.969 top-1, Partial FC .923. Recall and top-1: IVF-BQ .427 and .958, hashing forest .887 and .960, LSH .079 and .957
with 8 tables, .283 and .966 with 32: accuracy does not follow recall here. 1, 2, 4, 8, 16 groups: .931, .949, .955,
.958, .959. An index that is never built again: recall .041, top-1 .908; built every 12 or 234 steps: .958 and .959. 8
centres .950, 32 to 512 .959 to .966. HM_num of .02 of the classes .957, .05 to .5 .960 to .966. k' of .02 of HM_num
.954, .3 and 1 .965 and .964.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.1.
"""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.base import Classes, Query, Sampler
from candax.blocks import streaming_top_k
from candax.cosines import unit
from candax.diagnostics.top_k import top_k_share
from candax.experiments import ann_methods, ann_setup, setup
from candax.experiments.ann_methods import LOSSES, MethodName, Sizes
from candax.pictures import save_picture
from candax.training import Program, TrainState
from candax.training.metrics_log import write_atomically

SweepName = Literal["method", "num_groups", "period", "num_centers", "hm_num", "num_kept"]

_WITHOUT_RETRIEVAL: tuple[MethodName, ...] = ("full_softmax", "partial_fc")

_LABELS = {
    "method": "table 1: accuracy and recall",
    "num_groups": "table 2: groups a batch",
    "period": "figure 4a: T, steps",
    "num_centers": "figure 4b: centres",
    "hm_num": "figure 4c: HM_num / classes",
    "num_kept": "figure 4d: k' / HM_num",
}


@dataclasses.dataclass(frozen=True)
class ANNRecall(ann_setup.Settings):
    """Trains with one retrieval after another; prints a table, writes results.json and recall.png."""

    epochs: float = 3
    """Passes over the samples."""
    sweeps: tuple[SweepName, ...] = ("method", "num_groups", "period", "num_centers", "hm_num", "num_kept")
    """What to change: table 1, table 2, figure 4a to d."""
    num_tables: tuple[int, ...] = (8, 32)
    """L of LSH."""
    groups: tuple[int, ...] = (1, 2, 4, 8, 16)
    """Groups a batch."""
    periods: tuple[float, ...] = (0.05, 1, 10)
    """T as a share of an epoch; from the whole training on the index is never built again."""
    centers: tuple[int, ...] = (8, 32, 128, 512)
    """Lists."""
    hm_num: tuple[float, ...] = (0.02, 0.05, 0.2, 0.5)
    """Codes seen, as a share of all classes."""
    num_kept: tuple[float, ...] = (0.02, 0.3, 1.0)
    """Codes kept, as a share of those seen."""
    out: setup.Out = Path("runs/ann_recall")
    """Folder for results.json and recall.png."""


@dataclasses.dataclass(frozen=True)
class Row:
    """One trained model; recall is None where no classes are retrieved, or all."""

    sweep: str
    method: str
    value: float | None
    k: int
    recall: float | None
    top_1: float
    ms_per_step: float


@dataclasses.dataclass(frozen=True)
class _Plan:
    """What to train: ``found`` is the sampler whose recall is measured."""

    sweep: str
    method: str
    value: float | None
    k: int
    found: Sampler | None
    sampler: Sampler | None
    loss: Callable[..., Any]


def ann_recall(settings: ANNRecall) -> list[Row]:
    """Runs the experiment and writes its files; returns the rows."""
    problem = ann_setup.make_problem(settings, pairs=20, probes=1, distractors=1)
    plans = _plans(settings, problem)
    out = setup.writable_folder(settings.out)
    about = (
        f"{settings.num_classes:,} identities, {problem.num_steps:,} steps of {settings.batch_size}, "
        f"{settings.num_sampled:,} candidates a group"
    )
    Console().print(about)
    rows = []
    for plan in plans:
        name = f"{plan.method}, {plan.sweep}" if plan.value is None else f"{plan.method}, {plan.sweep} {plan.value:g}"
        measure = None if plan.found is None else _recall_of(problem, plan.found, plan.k)
        trained = ann_setup.train(problem, name, plan.sampler, plan.loss, evaluate=measure)
        accuracy = ann_setup.top_1(problem, trained.program, trained.state)
        recall = None if measure is None else float(np.mean([record["recall"] for record in trained.records]))
        rows.append(Row(plan.sweep, plan.method, plan.value, plan.k, recall, accuracy, trained.ms_per_step))
        # After every model: a long run that is cut off leaves what it has.
        write_atomically(
            out / "results.json",
            json.dumps({"data": about, "rows": [dataclasses.asdict(row) for row in rows]}, indent=1) + "\n",
        )
    Console().print(_table(about, rows))
    _draw(rows, about, out / "recall.png")
    return rows


def _plans(settings: ANNRecall, problem: ann_setup.Problem) -> list[_Plan]:
    per_epoch, loss = problem.batches.batches_per_epoch, LOSSES["softmax"]
    base = ann_methods.sizes_of(settings, per_epoch)
    hm_num = max(1, settings.num_classes // 10)
    plans = []

    def add(sweep: SweepName, method: str, value: float | None, **changes: Any) -> None:
        if sweep in settings.sweeps:
            sizes: Sizes = dataclasses.replace(base, **changes)
            found = ann_methods.RETRIEVALS[method](sizes)
            plans.append(_Plan(sweep, method, value, sizes.k, found, ann_methods.grouped(found, sizes), loss))

    if "method" in settings.sweeps:
        for name in _WITHOUT_RETRIEVAL:
            sampler, function = ann_methods.method(name, base, loss)
            plans.append(_Plan("method", name, None, base.k, sampler, sampler, function))
    add("method", "ann_softmax", None)
    add("method", "hf_softmax", None)
    for number in settings.num_tables:
        add("method", "lsh_softmax", number, num_tables=number)
    for number in settings.groups:
        add("num_groups", "ann_softmax", number, num_groups=number)
    for share in settings.periods:
        period = max(1, round(share * per_epoch))
        add("period", "ann_softmax", min(period, problem.num_steps), period=period)
    for number in settings.centers:
        add("num_centers", "ann_softmax", number, num_centers=number)
    for share in settings.hm_num:
        # k' stays what it is by default, so that only the codes seen differ.
        seen = max(1, round(share * settings.num_classes))
        add("hm_num", "ann_softmax", share, hm_num=seen, num_kept=max(1, min(seen, hm_num // 10)))
    for share in settings.num_kept:
        add("num_kept", "ann_softmax", share, hm_num=hm_num, num_kept=max(1, round(share * hm_num)))
    return plans


def _recall_of(problem: ann_setup.Problem, found: Sampler, k: int) -> Callable[[Program, TrainState], dict[str, float]]:
    # As many as a batch has: Partial FC's candidates are its labels, first of all.
    number = problem.settings.batch_size
    inputs, ids = problem.test_inputs[:number], problem.test_ids[:number]

    @jax.jit
    def recall(sampler_state: Any, embeddings: jax.Array, labels: jax.Array, classes: Classes) -> jax.Array:
        query = Query(unit(embeddings), labels, classes)
        candidates = found.sample(sampler_state, jax.random.key(0), query)
        scores, best = streaming_top_k(embeddings, classes, k)
        return jnp.mean(top_k_share(candidates, best, scores > -jnp.inf))

    def measure(program: Program, state: TrainState) -> dict[str, float]:
        embeddings = ann_setup.embed(program, state, inputs)
        labels = ids[:, None].astype(np.int32)
        return {"recall": float(recall(state.sampler, embeddings, labels, program.classes(state)))}

    return measure


def _table(title: str, rows: list[Row]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("sweep", "method"):
        table.add_column(column, no_wrap=True)
    for column in ("value", "k", "recall", "top-1", "ms/step"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(
            row.sweep,
            row.method,
            "-" if row.value is None else f"{row.value:g}",
            str(row.k),
            "-" if row.recall is None else f"{row.recall:.3f}",
            f"{row.top_1:.4f}",
            f"{row.ms_per_step:.1f}",
        )
    return table


def _draw(rows: list[Row], title: str, path: Path) -> None:
    """A panel a sweep: accuracy on the left scale, recall on the right one; table 1 has one against the other."""
    sweeps = list(dict.fromkeys(row.sweep for row in rows))
    reference = next((row.top_1 for row in rows if row.method == "full_softmax"), None)
    with save_picture(path, columns=len(sweeps), size=(1 + 3.4 * len(sweeps), 5), share_y=True) as axes:
        for axis, sweep in zip(axes, sweeps, strict=True):
            some = [row for row in rows if row.sweep == sweep and row.recall is not None]
            if reference is not None:
                axis.axhline(reference, color="black", linewidth=1)
            if sweep == "method":
                for row in some:
                    name = row.method if row.value is None else f"{row.method}, L = {row.value:g}"
                    axis.scatter(row.recall, row.top_1, label=name)
                axis.set(xlabel="recall", xlim=(0, 1))
                axis.legend(fontsize="small")
            else:
                values = [row.value for row in some]
                axis.plot(values, [row.top_1 for row in some], "o-")
                axis.set(xscale="log")
                axis.set_xticks(values, [f"{value:g}" for value in values])
                axis.minorticks_off()
                right = axis.twinx()
                right.plot(values, [row.recall for row in some], "s:", color="gray")
                right.set(ylim=(0, 1))
                if sweep == sweeps[-1]:
                    right.set_ylabel("recall (squares)", color="gray")
                else:
                    right.set_yticklabels([])
            axis.set(title=_LABELS[sweep])
        axes[0].set(ylabel="top-1 on new samples of the training classes (line: all classes)")
        axes[0].figure.suptitle(f"{title}\npaper: accuracy follows recall, and needs an index that is built again")


if __name__ == "__main__":
    ann_recall(tyro.cli(ANNRecall))
