"""ANN Softmax, table 5 and figure 5: where a step's time and memory go, and accuracy against time.

    candax experiment ann-profile

Table 5, with 100,000 classes: milliseconds of each part of a step's work on the head, timed alone, median of several:
retrieval (drawing candidates and finding their distinct rows), forward (gathering rows, cosines), loss forward and
backward, backward (to rows and embeddings), update (optimizer, and the index following the rows), and the builds of
index or graph spread over the steps between two of them; beside them a whole training step, encoder included, the
scratch memory of the compiled step, and the bytes of weights, optimizer and sampler state. Figure 5, with 10,000
classes: top-1 accuracy during training against training time. KNN Softmax's graph is built at the start and then once
per epoch: in the first epoch it is that of the initial class vectors.

The paper's claims, on GPUs with 10^7 and 10^8 classes: ANN Softmax takes half to a quarter of the full softmax's time
per step and less than KNN Softmax's, most of it saved in the loss; it is as accurate; Partial FC takes the least time,
and is less accurate even where it is given as much time.

Expected with the paper's codes, --codes mean --epochs 1 (5 minutes on 2 cores), ms per step at 100,000 classes: full
softmax 267, ANN 284 (149 of them retrieval), KNN 147, LSH 210, Partial FC 35; scratch 284, 139, 139, 140, 27 MB. 10,000
classes, top-1 after one epoch and its seconds: .808 (15), .823 (19), .793 (9), .811 (53), .510 (6).

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.4.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, ClassVar

import jax

from candax.diagnostics.head_profile import PARTS, profile
from candax.experiments import ann_methods
from candax.experiments.ann_methods import LOSSES, Coded, MethodName
from candax.recipes import common
from candax.recipes.faces import Faces


@dataclasses.dataclass(frozen=True)
class ANNProfile(Coded, Faces):
    """Times the parts of a step, then trains by every method; prints a table, writes results.json and a picture."""

    methods: tuple[MethodName, ...] = ("full_softmax", "ann_softmax", "knn_softmax", "lsh_softmax", "partial_fc")
    """Methods to compare; hf_softmax takes by far the longest."""
    profile_classes: common.Count = 100_000
    """Number of classes for table 5."""
    repeats: common.Count = 5
    """Timings behind each median."""
    num_classes: common.Count = 10_000
    """Number of classes for figure 5."""
    epochs: common.Positive = 3
    """Passes over the samples, for figure 5."""

    QUICK: ClassVar = {
        **Faces.QUICK,
        **{"epochs": 0.5, "methods": ("full_softmax", "ann_softmax"), "profile_classes": 200, "repeats": 1},
    }

    def check(self) -> None:
        """See ``Settings``; something must be timed."""
        super().check()
        self.expect(bool(self.methods), "one method or more", "methods")


_PARTS, _CURVE = "table 5", "figure 5"
COLUMNS = [
    *common.columns(of="", num_classes=",", method="", **dict.fromkeys((*PARTS, "ms_per_step"), ".1f")),
    *common.columns(scratch_mb=".0f", state_mb=".0f", top_1=".3f"),
]


@common.command
def ann_profile(settings: ANNProfile) -> common.Study:
    """Runs the study; a row for each method with the parts of its time, and one for each with its accuracy."""
    large, loss = dataclasses.replace(settings, num_classes=settings.profile_classes), LOSSES["softmax"]
    many, few = ann_methods.classification(large, tests=1), ann_methods.classification(settings)
    sizes, large_sizes = (ann_methods.sizes_of(each, settings.codes) for each in (settings, large))
    training = few.training(measure=few.top_1, on_the_way=few.top_1)

    def profiled(name: MethodName, folder: Path | None) -> dict[str, Any]:
        nodes = many.training().make(*ann_methods.method(name, large_sizes, loss))
        period = ann_methods.build_period(name, large_sizes)
        found = profile(*nodes, loss, many.batches[0, 0], period=period, repeats=settings.repeats)
        sizes_in_mb = {"scratch_mb": found.scratch_bytes / 1e6, "state_mb": found.state_bytes / 1e6}
        return {**found.milliseconds, "ms_per_step": found.ms_per_step, **sizes_in_mb}

    def method(of: str, num_classes: int, name: MethodName, run: common.Run) -> common.Method:
        return common.Method({"of": of, "num_classes": num_classes, "method": name}, run)

    parts = {"ylabel": "ms per step, head alone", "title": f"{_PARTS}: {large.num_classes:,} classes"}
    curve = {"xlabel": "training time in seconds, encoder included (log scale)", "xscale": "log"}
    curve |= {"ylabel": "top-1 on new samples of the training classes"}
    return common.Study(
        f"{jax.devices()[0].device_kind}: batch {settings.batch_size}, dim {settings.dim}, candidates: "
        f"{settings.rate:g} of the classes, {settings.num_groups} groups; ms",
        [
            *(method(_PARTS, large.num_classes, name, functools.partial(profiled, name)) for name in settings.methods),
            *(
                method(_CURVE, settings.num_classes, name, training.by(*ann_methods.method(name, sizes, loss), name))
                for name in settings.methods
            ),
        ],
        COLUMNS,
        (
            common.Panel(common.bars(PARTS, where=lambda row: row["of"] == _PARTS), parts),
            common.Panel(
                common.curves("seconds", "top_1", marker="o"),
                {**curve, "title": f"{_CURVE}: {settings.num_classes:,} classes"},
            ),
        ),
    )
