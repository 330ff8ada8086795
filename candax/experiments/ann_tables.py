"""ANN Softmax, tables 3 and 4: how well encoders tell apart identities unseen in training, by method and margin.

    candax experiment ann-tables

Generated identities (``candax.data.Identities``): 3,000 to train on with 20 samples each; verification of 6,000 pairs
of new ones (the other identity of a pair is the nearest of 64), rank-1 identification of 2,000 among 50,000
distractors, and top-1 classification of new samples of the training classes. Table 3: all methods with ArcFace (scale
64, margin .5), a tenth of the classes as candidates. Table 4: the softmax without a margin, ArcFace, CosFace (margin
.4) and D-Softmax, each over all classes and with ANN Softmax, and D-Softmax's own two ways to compute less: B (the loss
between classes of a tenth of the examples) and K (over a tenth of the classes, drawn uniformly). Random projection is
measured by its short embeddings: cosines in all coordinates are not recovered from them.

The paper's claims: with a tenth of the classes ANN Softmax is as accurate as all classes, under every margin; KNN
Softmax too; LSH Softmax, hashing forests and Partial FC lose a little, random projection and D-Softmax-B and K more.

Expected with the paper's codes, --codes mean (10 minutes on 2 cores, half of them the hashing forest; one seed; all
figures are in docs/papers/ann.md): verification .943 to .960, which does not tell methods apart. Rank-1 and top-1 with
ArcFace: all classes .608 and .985, ANN .577 and .980, LSH .611 and .984, Partial FC .492 and .893; random projection to
12 coordinates does not learn ArcFace (top-1 .002). Milliseconds per step: full softmax 6.1, ANN 12.1, Partial FC 3.4,
hashing forest 229. With ``--epsilon 1e-8``, the usual one of Adam, all classes are far behind (.444 and .897): see
``candax.recipes.faces.Faces.epsilon``.

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.2.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

from candax import losses, samplers
from candax.base import Sampler
from candax.experiments import ann_methods
from candax.experiments.ann_methods import LOSSES, Coded, LossName, MethodName, Sizes
from candax.recipes import common
from candax.recipes.faces import Faces, make_problem

_PROJECTED = "random_projection"


@dataclasses.dataclass(frozen=True)
class ANNTables(Coded, Faces):
    """Trains by every method and under every margin; prints a table, writes results.json and a picture."""

    methods: tuple[MethodName, ...] = ann_methods.METHODS
    """Methods of table 3."""
    losses: tuple[LossName, ...] = ("softmax", "arcface", "cosface", "d_softmax")
    """Losses of table 4."""
    num_projected: common.NonNegative | None = None
    """Coordinates that random projection leaves of --dim; None: a fifth (the paper: 100 of 512), 0: leave it out."""
    distractors: common.Count = 50_000
    """Identities among which those to be found are hidden."""

    QUICK: ClassVar = {**Faces.QUICK, "epochs": 12.0, "distractors": 300, "methods": (), "losses": ("softmax",)}

    def check(self) -> None:
        """See ``Settings``; something must be trained, and a projection must not make more coordinates."""
        super().check()
        some = bool(self.methods or self.losses)
        self.expect(some, "a word after --methods or one after --losses", "methods", "losses")
        fits = (self.num_projected or 0) <= self.dim
        self.expect(fits, "--num-projected of 0 to --dim", "num_projected", "dim")


COLUMNS = (
    *common.columns(loss="", method="", verification=".4f", verification_std=".4f"),
    *common.columns(rank_1=".4f", top_1=".4f", ms_per_step=".1f"),
    common.Column("time", "time", ".2f", common.relative("ms_per_step", same=("loss",))),
)


@common.command
def ann_tables(settings: ANNTables) -> common.Study:
    """Runs the study; a row for each loss and method, after one for an encoder that was not trained."""
    problem = make_problem(settings, distractors=settings.distractors)
    sizes = ann_methods.sizes_of(settings, settings.codes)
    short = max(1, settings.dim // 5) if settings.num_projected is None else settings.num_projected

    def method(loss: str, method: str, sampler: Sampler | None, function: Callable[..., Any]) -> common.Method:
        training = problem.training(num_projected=short if method == _PROJECTED else None)
        return common.Method({"loss": loss, "method": method}, training.by(sampler, function, f"{loss}, {method}"))

    untrained = common.Method(
        {"loss": "-", "method": "untrained"}, lambda folder: problem.measure(problem.model()) | {"ms_per_step": 0.0}
    )
    return common.Study(
        f"{settings.num_classes:,} identities, {problem.num_steps:,} steps of {settings.batch_size}, "
        f"{settings.num_sampled:,} candidates per group, {settings.num_groups} groups, k = {sizes.k}",
        [untrained, *(method(*plan) for plan in _plans(settings, sizes))],
        COLUMNS,
        [_panel("verification"), _panel("rank_1"), _panel("top_1")],
        "paper: ANN Softmax is where all classes are (line), others to its left",
        "time: of the same loss over all classes",
    )


def _panel(measure: str) -> common.Panel:
    lines = common.dots(
        measure,
        label=lambda row: f"{row['loss']}: {row['method']}",
        by="loss",
        where=lambda row: row["method"] != "untrained",
    )
    return common.Panel(lines, {"xlabel": measure.replace("_", "-"), "ylabel": ""})


def _plans(settings: ANNTables, sizes: Sizes) -> list[tuple[LossName, str, Sampler | None, Callable[..., Any]]]:
    """Loss, method, and what to train with, each once."""
    pairs: list[tuple[LossName, MethodName]] = [("arcface", method) for method in settings.methods]
    pairs += [(loss, method) for loss in settings.losses for method in ("full_softmax", "ann_softmax")]
    plans: list[tuple[LossName, str, Sampler | None, Callable[..., Any]]] = [
        (loss, name, *ann_methods.method(name, sizes, LOSSES[loss])) for loss, name in dict.fromkeys(pairs)
    ]
    if settings.num_projected != 0 and settings.methods:
        plans.append(("arcface", _PROJECTED, None, losses.over_all_classes(LOSSES["arcface"])))
    if "d_softmax" in settings.losses:
        of_some = losses.over_all_classes(functools.partial(losses.d_softmax_b, share=settings.rate))
        drawn = samplers.uniform(sizes.num_sampled, replacement=False)
        plans += [("d_softmax", "d_softmax_b", None, of_some), ("d_softmax", "d_softmax_k", drawn, losses.d_softmax)]
    order = list(LOSSES)
    return sorted(plans, key=lambda plan: order.index(plan[0]))
