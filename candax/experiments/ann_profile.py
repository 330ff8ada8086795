"""ANN Softmax, table 5 and figure 5: where a step's time and memory go, and accuracy against time.

    python -m candax.experiments.ann_profile

Table 5, with 100,000 classes: milliseconds of each part of a step's work on the head, by themselves, median of several:
retrieval (drawing candidates and finding their distinct rows), forward (gathering rows, cosines), loss forward and
backward, backward (to rows and embeddings), update (optimizer, and the index following the rows), and the builds of
index or graph spread over the steps between two of them; beside them a whole training step, encoder included, the
scratch memory of the compiled step, and the bytes of weights, optimizer and sampler state. Figure 5, with 10,000
classes: top-1 accuracy on the way against training time.

The paper's claims, on GPUs with 10^7 and 10^8 classes: ANN Softmax takes half to a quarter of the full softmax's time a
step and less than KNN Softmax's, most of it won in the loss; it is as accurate; Partial FC takes the least time, and is
less accurate even where it is given as much.

Expected with --epochs 1 (5 minutes on 2 cores), ms a step at 100,000 classes: full softmax 267, ANN 284 (149 of them
retrieval), KNN 147, LSH 210, Partial FC 35; scratch 284, 139, 139, 140, 27 MB. So on a CPU KNN Softmax takes half of
the full softmax's time, while the index finds a tenth of the classes for each of 8 groups no quicker than the full
softmax's matrix products score all. 10,000 classes, top-1 after one epoch and its seconds: .808 (15), .823 (19), .793
(9), .811 (53), .510 (6).

Source: Zhao et al., ANN Softmax: Acceleration of Extreme Classification Training (2021), section 4.4.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import tyro
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.experiments import ann_methods, ann_setup, setup
from candax.experiments.ann_methods import LOSSES, MethodName
from candax.experiments.head_profile import PARTS, Profile, profile
from candax.pictures import save_picture
from candax.training import Program, TrainState
from candax.training.metrics_log import write_atomically


@dataclasses.dataclass(frozen=True)
class ANNProfile(ann_setup.Settings):
    """Times the parts of a step, then trains by every method; prints a table, writes results.json and profile.png."""

    methods: tuple[MethodName, ...] = ("full_softmax", "ann_softmax", "knn_softmax", "lsh_softmax", "partial_fc")
    """Methods; hf_softmax takes much the longest."""
    profile_classes: int = 100_000
    """Classes of table 5."""
    repeats: int = 5
    """Timings behind each median."""
    num_classes: int = 10_000
    """Classes of figure 5."""
    epochs: float = 3
    """Passes over the samples, for figure 5."""
    out: setup.Out = Path("runs/ann_profile")
    """Folder for results.json and profile.png."""


@dataclasses.dataclass(frozen=True)
class Curve:
    """Accuracy on the way: (seconds, top_1)."""

    method: str
    ms_per_step: float
    points: list[tuple[float, float]]


def ann_profile(settings: ANNProfile) -> tuple[list[Profile], list[Curve]]:
    """Runs the experiment and writes its files; returns the profiles and the curves."""
    if settings.repeats < 1:
        raise ValueError(f"expected --repeats of 1 or more, got {settings.repeats}.")
    problem = ann_setup.make_problem(settings, pairs=20, probes=1, distractors=1)
    out = setup.writable_folder(settings.out)
    loss, device = LOSSES["softmax"], jax.devices()[0].device_kind
    about = (
        f"{device}: batch {settings.batch_size}, dim {settings.dim}, candidates: {settings.rate:g} of the classes, "
        f"{settings.num_groups} groups"
    )
    profiles: list[Profile] = []
    curves: list[Curve] = []

    def write() -> None:
        # After every method: a long run that is cut off leaves what it has.
        results: dict[str, Any] = {"data": about}
        results["profiles"] = [dataclasses.asdict(row) for row in profiles]
        results["curves"] = [dataclasses.asdict(curve) for curve in curves]
        write_atomically(out / "results.json", json.dumps(results, indent=1) + "\n")

    large = ann_setup.make_problem(
        dataclasses.replace(settings, num_classes=settings.profile_classes), tests=1, pairs=20, probes=1, distractors=1
    )
    sizes = ann_methods.sizes_of(large.settings, large.batches.batches_per_epoch)
    for method in settings.methods:
        sampler, function = ann_methods.method(method, sizes, loss)
        program = ann_setup.make_program(large, sampler, function)
        period = sizes.graph_period if method == "knn_softmax" else sizes.period
        optimizer = ann_setup.make_optimizer(large)
        batch = large.batches[0, 0]
        profiles.append(
            profile(method, program, sampler, loss, optimizer, batch, period=period, repeats=settings.repeats)
        )
        write()
    Console().print(_table(f"{settings.profile_classes:,} classes, ms; {about}", profiles))
    sizes = ann_methods.sizes_of(settings, problem.batches.batches_per_epoch)
    for method in settings.methods:
        trained = ann_setup.train(
            problem, method, *ann_methods.method(method, sizes, loss), evaluate=_top_1_of(problem)
        )
        points = [(record["seconds"], record["top_1"]) for record in trained.records]
        curves.append(Curve(method, trained.ms_per_step, points))
        write()
    _draw(profiles, curves, settings, about, out / "profile.png")
    return profiles, curves


def _top_1_of(problem: ann_setup.Problem) -> Any:
    def measure(program: Program, state: TrainState) -> dict[str, float]:
        return {"top_1": ann_setup.top_1(problem, program, state)}

    return measure


def _table(title: str, profiles: list[Profile]) -> Table:
    table = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for row in profiles:
        table.add_column(row.method, justify="right")
    for part in PARTS:
        table.add_row(part.replace("_", " "), *(f"{row.milliseconds[part]:.1f}" for row in profiles))
    table.add_row("head", *(f"{sum(row.milliseconds.values()):.1f}" for row in profiles))
    table.add_row("step", *(f"{row.ms_per_step:.1f}" for row in profiles))
    table.add_row("scratch, MB", *(f"{row.scratch_bytes / 1e6:.0f}" for row in profiles))
    table.add_row("state, MB", *(f"{row.state_bytes / 1e6:.0f}" for row in profiles))
    return table


def _draw(profiles: list[Profile], curves: list[Curve], settings: ANNProfile, about: str, path: Path) -> None:
    """The parts of the time on top of each other; accuracy against time."""
    with save_picture(path, columns=2, size=(14, 5.5), share_y=False) as axes:
        names = [row.method for row in profiles]
        below = [0.0] * len(profiles)
        for part in PARTS:
            values = [row.milliseconds[part] for row in profiles]
            axes[0].bar(names, values, bottom=below, label=part.replace("_", " "))
            below = [a + b for a, b in zip(below, values, strict=True)]
        axes[0].set(ylabel="ms a step, head alone", title=f"table 5: {settings.profile_classes:,} classes")
        axes[0].legend(fontsize="small")
        for curve in curves:
            look = {"color": "black", "linewidth": 2.5} if curve.method == "full_softmax" else {}
            seconds, accuracy = zip(*curve.points, strict=True)
            axes[1].plot(seconds, accuracy, "o-", label=curve.method, **look)
        axes[1].set(
            xlabel="training time in seconds, encoder included (log scale)",
            ylabel="top-1 on new samples of the training classes",
            xscale="log",
            title=f"figure 5: {settings.num_classes:,} classes",
        )
        axes[1].legend(fontsize="small")
        axes[0].figure.suptitle(about)


if __name__ == "__main__":
    ann_profile(tyro.cli(ANNProfile))
