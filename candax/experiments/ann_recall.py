"""ANN Softmax, tables 1 and 2 and figure 4: what retrieval finds, and how much of that shows in accuracy.

    candax experiment ann-recall

On generated identities, with the softmax of scaled cosines: top-1 accuracy on new samples of the training classes, and
recall, the share of an example's k best classes that retrieval finds (k by equation 8), as the mean over six points of
the training. Table 1: IVF-BQ, a hashing forest and LSH at several sizes, beside all classes and random ones (Partial
FC). Table 2: groups per batch, which change k. Figure 4: T (steps between builds of the index; the last one: never),
number of centres, HM_num and k', one at a time, the others as the paper says.

The paper's claims: accuracy follows recall (IVF-BQ .856, hashing forest .394, LSH .313); it grows with the number of
groups; it does not depend on T until the index is never built again, nor on the number of centres; it grows with HM_num
and little with k'.

Expected with --epsilon 1e-8 (30 minutes on 2 busy cores, a third of them the hashing forest; one seed), recall and
top-1: IVF-BQ .427 and .958, hashing forest .887 and .960, LSH .079 and .957 with 8 tables, .283 and .966 with 32;
Partial FC .923, all classes .969. Top-1 with 1, 2, 4, 8, 16 groups: .931, .949, .955, .958, .959; with an index built
every 12 or 234 steps .958 and .959, never again .908 (recall .041); 8 centres .950, 32 to 512 .959 to .966; HM_num of
.02 of the classes .957, .05 to .5 .960 to .966; k' of .02 of HM_num .954, .3 and 1 .965 and .964.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.1.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from candax.base import Classes, Query, Sampler
from candax.blocks import streaming_top_k
from candax.cosines import unit
from candax.diagnostics.top_k import top_k_share
from candax.experiments import ann_methods
from candax.experiments.ann_methods import LOSSES, MethodName
from candax.recipes import common
from candax.recipes.faces import Faces, Problem

SweepName = Literal["method", "num_groups", "period", "num_centers", "hm_num", "num_kept"]
TITLES: dict[SweepName, str] = {
    "method": "table 1: accuracy and recall",
    "num_groups": "table 2: groups per batch",
    "period": "figure 4a: T, steps",
    "num_centers": "figure 4b: centres",
    "hm_num": "figure 4c: HM_num / classes",
    "num_kept": "figure 4d: k' / HM_num",
}
# T in epochs (if it is as long as the training, the index is never built again), HM_num as a share of all classes, k'
# as a share of HM_num. For table 1, numbers of hash tables.
VALUES: dict[SweepName, tuple[float, ...]] = {
    "method": (8, 32),
    "num_groups": (1, 2, 4, 8, 16),
    "period": (0.05, 1, 10),
    "num_centers": (8, 32, 128, 512),
    "hm_num": (0.02, 0.05, 0.2, 0.5),
    "num_kept": (0.02, 0.3, 1.0),
}
_WHOLE: set[SweepName] = {"method", "num_groups", "num_centers"}


@dataclasses.dataclass(frozen=True)
class ANNRecall(Faces):
    """Trains with one retrieval after another; prints a table, writes results.json and a picture."""

    epochs: common.Positive = 3
    """Passes over the samples."""
    sweeps: tuple[SweepName, ...] = tuple(TITLES)
    """What to change: table 1, table 2, figure 4a to d."""
    values: tuple[common.Positive, ...] = ()
    """Values for what is changed; none: the study's own."""

    QUICK: ClassVar = {**Faces.QUICK, "sweeps": ("hm_num",), "rate": 1.0, "num_groups": 8, "values": (0.1, 1.0)}

    def check(self) -> None:
        """See ``Settings``; numbers of hash tables, groups and centres are whole."""
        super().check()
        self.expect(bool(self.sweeps), "a word after --sweeps", "sweeps")
        whole = not _WHOLE & set(self.sweeps) or all(float(value).is_integer() for value in self.values)
        self.expect(whole, f"whole numbers after --values for {', '.join(sorted(_WHOLE))}", "values", "sweeps")
        groups = (self.values or VALUES["num_groups"]) if "num_groups" in self.sweeps else ()
        divide = all(self.batch_size % number == 0 for number in groups)
        self.expect(divide, f"--batch-size to be a multiple of each of {groups} groups", "batch_size", "sweeps")


COLUMNS = (
    *common.columns(sweep="", method="", value="g", k=""),
    common.Column(
        "recall", "recall", ".3f", lambda row, rows: float(np.mean(row["curve"]["recall"])) if row["curve"] else None
    ),
    *common.columns(top_1=".4f", ms_per_step=".1f"),
)


@common.command
def ann_recall(settings: ANNRecall) -> common.Study:
    """Runs the study; a row for each trained model, with recall None where all classes are candidates."""
    problem = ann_methods.classification(settings)
    return common.Study(
        f"{settings.num_classes:,} identities, {problem.num_steps:,} steps of {settings.batch_size}, "
        f"{settings.num_sampled:,} candidates per group",
        [method for sweep in settings.sweeps for method in _methods(settings, problem, sweep)],
        COLUMNS,
        [_panel(sweep) for sweep in settings.sweeps],
        "paper: accuracy follows recall, and needs an index that is built again",
    )


def _panel(sweep: SweepName) -> common.Panel:
    """Accuracy on the left scale, recall on the right one; for table 1, accuracy against recall."""

    def here(row: common.Row) -> bool:
        return row["sweep"] == sweep and row["recall"] is not None

    axes: dict[str, Any] = {"title": TITLES[sweep], "ylabel": "top-1 on new samples of the training classes"}
    reference = common.level("all classes", common.figure_of("full_softmax", "top_1"))
    if sweep == "method":
        points = common.sweep("recall", "top_1", by=lambda row: f"{row['method']}, {row['value']}", where=here)
        return common.Panel((points, reference), {**axes, "xlabel": "recall", "xlim": (0, 1)})
    accuracy = common.sweep("value", "top_1", by=lambda row: "top-1", where=here)
    found = common.sweep("value", "recall", by=lambda row: "recall (right)", where=here, right=True, marker="s")
    return common.Panel((accuracy, found, reference), {**axes, "xscale": "log"})


def _methods(settings: ANNRecall, problem: Problem, sweep: SweepName) -> Iterator[common.Method]:
    base, loss = ann_methods.sizes_of(settings), LOSSES["softmax"]
    seen = max(1, settings.num_classes // 10)

    def method(name: MethodName, value: float | None, **changes: Any) -> common.Method:
        sizes = dataclasses.replace(base, **changes)
        by: tuple[Any, Any] = ann_methods.method(name, sizes, loss)
        found = ann_methods.RETRIEVALS[name](sizes) if name in ann_methods.RETRIEVALS else by[0]
        measure = None if found is None else _recall(problem, found, sizes.k)
        training = problem.training(measure=problem.top_1, on_the_way=measure)
        labels = {"sweep": sweep, "method": name, "value": value, "k": sizes.k}
        return common.Method(labels, training.by(*by, f"{name}, {sweep}"))

    if sweep == "method":
        names: tuple[MethodName, ...] = ("full_softmax", "partial_fc", "ann_softmax", "hf_softmax")
        yield from (method(name, None) for name in names)
    for value in settings.values or VALUES[sweep]:
        if sweep == "method":
            yield method("lsh_softmax", value, num_tables=int(value))
        elif sweep == "period":
            period = max(1, round(value * settings.batches_per_epoch))
            yield method("ann_softmax", min(period, problem.num_steps), period=period)
        elif sweep == "hm_num":
            # k' stays what it is by default, so that only the codes seen differ.
            codes = max(1, round(value * settings.num_classes))
            yield method("ann_softmax", value, hm_num=codes, num_kept=max(1, min(codes, seen // 10)))
        elif sweep == "num_kept":
            yield method("ann_softmax", value, hm_num=seen, num_kept=max(1, round(value * seen)))
        else:
            yield method("ann_softmax", int(value), **{sweep: int(value)})


def _recall(problem: Problem, found: Sampler, k: int) -> Callable[[Any], dict[str, float]]:
    # As many examples as a batch has: Partial FC's candidates are the batch's labels, first of all.
    number = problem.settings.batch_size
    inputs, labels = problem.test_inputs[:number], problem.test_ids[:number, None].astype(np.int32)

    @jax.jit
    def recall(sampler_state: Any, embeddings: jax.Array, labels: jax.Array, classes: Classes) -> jax.Array:
        candidates = found.sample(sampler_state, jax.random.key(0), Query(unit(embeddings), labels, classes))
        scores, best = streaming_top_k(embeddings, classes, k)
        return jnp.mean(top_k_share(candidates, best, scores > -jnp.inf))

    def measure(model: Any) -> dict[str, float]:
        state, classes = model.head.state.get_value(), model.head.classes()
        return {"recall": float(recall(state, jnp.asarray(problem.embed(model, inputs)), labels, classes))}

    return measure
