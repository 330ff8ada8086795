"""Tables and pictures of `word2vec_questions`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from candax.diagnostics.report import with_error
from candax.experiments.word2vec_variants import QUESTIONS, Question, QuestionName
from candax.pictures import save_picture

_TITLES = {
    "mrr": "held-out MRR",
    "mrr_rare": "MRR of rare words",
    "words_per_second": "words/s",
}
_GEOMETRY = {
    "mrr_power": "frequency missing in logits",
    "input_length": "length with frequency",
    "output_length": "length of classes",
    "mean_cosine": "mean cosine",
}


def show(
    results: dict[str, Any], questions: Sequence[QuestionName], seeds: Sequence[int], out: Path, console: Console
) -> None:
    """Prints a table for each question and writes its picture, ``NAME.png``."""
    for name in questions:
        if name == "theory":
            console.print(_theory_table(results["theory"], seeds))
            _draw_theory(results["theory"], seeds, out / "theory.png")
            continue
        question = QUESTIONS[name]
        runs = {variant: _of_seeds(results["runs"][variant], seeds) for variant in question.variants}
        measures = _measures(runs)
        if not measures:
            console.print(f"{question.title}: all trainings diverged.")
            continue
        extra = tuple(_GEOMETRY) if name == "correction" else ()
        console.print(_table(question, runs, measures, {}))
        if extra:
            console.print(_table(question, runs, extra, results.get("overlap", {})))
        if name == "hard":
            _draw_curves(question, runs, measures, results["about"], out / f"{name}.png")
        else:
            _draw(question, runs, (*measures, *extra), results["about"], out / f"{name}.png")


def _of_seeds(runs: dict[str, Any], seeds: Sequence[int]) -> list[dict[str, Any]]:
    return [runs[str(seed)] for seed in seeds if str(seed) in runs]


def _measures(runs: dict[str, list[dict[str, Any]]]) -> tuple[str, ...]:
    """Names of the scores, and of the speed."""
    done = [run for of_variant in runs.values() for run in of_variant if "scores" in run]
    if not done:
        return ()
    return (*(name for name in done[0]["scores"] if not name.endswith("_power")), "words_per_second")


def _values(runs: list[dict[str, Any]], measure: str) -> np.ndarray:
    """Of each training that did not diverge; NaN where there is no value."""
    done = [run for run in runs if "scores" in run]
    parts = ({**run, **run["scores"], **run["geometry"]} for run in done)
    return np.array([part[measure] for part in parts], float)


def _written(values: np.ndarray, of: int, *, whole: bool = False) -> str:
    """The mean and, in brackets, the standard deviation in units of its last digit; of whole numbers the mean alone."""
    if not len(values):
        return "diverged"
    written = with_error(values.mean(), values.std(ddof=1) if len(values) > 1 else 0.0)
    if whole:
        written = f"{values.mean():,.0f}"
    return f"{written}{f' ({of - len(values)} diverged)' if len(values) < of else ''}"


def _table(
    question: Question, runs: dict[str, list[dict[str, Any]]], measures: Sequence[str], overlap: dict[str, float]
) -> Table:
    table = Table(title=question.title, box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for measure in measures:
        table.add_column((_TITLES | _GEOMETRY).get(measure, measure), justify="right", min_width=9)
    if overlap:
        table.add_column("neighbours shared with the reference", justify="right")
    for label, of_variant in zip(_labels(question), runs.values(), strict=True):
        numbers = [
            _written(_values(of_variant, measure), len(of_variant), whole="second" in measure) for measure in measures
        ]
        shared = [f"{overlap[name]:.3f}" for name in runs if overlap and runs[name] is of_variant and name in overlap]
        table.add_row(label, *numbers, *shared)
    return table


def _labels(question: Question) -> list[str]:
    return list(question.variants) if question.values is None else [f"{value:g}" for value in question.values]


def _draw(
    question: Question, runs: dict[str, list[dict[str, Any]]], measures: Sequence[str], title: str, path: Path
) -> None:
    """A panel a measure: means over the variants, with standard deviations; crosses for what diverged."""
    labels = _labels(question)
    with save_picture(path, columns=len(measures), size=(2.9 * len(measures), 3.8), share_y=False) as axes:
        for axis, measure in zip(axes, measures, strict=True):
            values = [_values(of_variant, measure) for of_variant in runs.values()]
            for place, of_variant in enumerate(values):
                axis.plot([place] * len(of_variant), of_variant, ".", color="tab:blue", alpha=0.5)
                if not len(of_variant):
                    axis.annotate("diverged", (place, 0.02), xycoords=("data", "axes fraction"), rotation=90,
                                  ha="center", color="tab:red")  # fmt: skip
            means = [v.mean() if len(v) else np.nan for v in values]
            spreads = [v.std(ddof=1) if len(v) > 1 else 0.0 for v in values]
            joined = "-" if question.values is not None else ""
            axis.errorbar(range(len(values)), means, spreads, fmt=f"o{joined}", capsize=3, color="tab:blue")
            axis.set_xticks(range(len(values)), labels, rotation=0 if question.values is not None else 30)
            if question.values is None:
                for label in axis.get_xticklabels():
                    label.set(ha="right", fontsize="small")
            axis.set(title=(_TITLES | _GEOMETRY).get(measure, measure), xlabel=question.axis)
            axis.title.set_fontsize("medium")
            axis.set_xlim(-0.5, len(values) - 0.5)
        axes[0].figure.suptitle(f"{question.title}  ({title})", fontsize="medium")


def _draw_curves(
    question: Question, runs: dict[str, list[dict[str, Any]]], measures: Sequence[str], title: str, path: Path
) -> None:
    """A panel a measure: scores over the words read, each seed faint and the mean thick."""
    shown = [measure for measure in measures if measure != "words_per_second"]
    with save_picture(path, columns=len(shown), size=(3.6 * len(shown), 3.8), share_y=False) as axes:
        for axis, measure in zip(axes, shown, strict=True):
            for number, (variant, of_variant) in enumerate(runs.items()):
                curves = [run["curve"] for run in of_variant if "curve" in run]
                if not curves:
                    continue
                words = [point["words"] for point in curves[0]]
                values = np.array([[point[measure] for point in curve] for curve in curves], float)
                for curve in values:
                    axis.plot(words, curve, color=f"C{number}", alpha=0.3)
                axis.plot(words, values.mean(0), marker="o", color=f"C{number}", label=variant)
            axis.set(xlabel="words read", title=_TITLES.get(measure, measure), xscale="log")
        axes[0].legend(fontsize="small")
        axes[0].figure.suptitle(f"{question.title}  ({title})", fontsize="medium")


def _theory_table(theory: dict[str, Any], seeds: Sequence[int]) -> Table:
    table = Table(title="inner products of full-rank vectors and their prediction", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for column in ("correlation", "slope", "intercept", "RMSE", "pairs", "RMSE to PMI - log k", "seconds"):
        table.add_column(column, justify="right")
    for case, of_case in theory.items():
        runs = _of_seeds(of_case, seeds)
        names = ("correlation", "slope", "intercept", "rmse")
        table.add_row(
            case,
            *(_written(np.array([run["fit"][name] for run in runs]), len(runs)) for name in names),
            _written(np.array([run["fit"]["pairs"] for run in runs]), len(runs), whole=True),
            _written(np.array([run["fit_pmi"]["rmse"] for run in runs]), len(runs)),
            _written(np.array([run["seconds"] for run in runs]), len(runs), whole=True),
        )
    return table


def _draw_theory(theory: dict[str, Any], seeds: Sequence[int], path: Path) -> None:
    """A panel a case: fitted numbers against PMI - log k, and against the prediction where that is another."""
    cases = {case: _of_seeds(of_case, seeds)[0] for case, of_case in theory.items()}
    with save_picture(path, columns=len(cases), size=(4.2 * len(cases), 4.4), share_y=True) as axes:
        for axis, (case, run) in zip(axes, cases.items(), strict=True):
            pmi, predicted, fitted = np.array(run["points"]).T
            axis.plot(pmi, fitted, ".", markersize=3, alpha=0.5, color="tab:orange", label="over PMI - log k")
            axis.plot(predicted, fitted, ".", markersize=3, alpha=0.5, label="over log(P(w, c) / (P(w) q(c) k))")
            ends = [predicted.min(), predicted.max()]
            axis.plot(ends, ends, color="black", linewidth=1)
            fit = run["fit"]
            axis.set(title=f"{case}\nr = {fit['correlation']:.3f}, slope {fit['slope']:.2f}, RMSE {fit['rmse']:.3f}",
                     xlabel="predicted")  # fmt: skip
            axis.title.set_fontsize("medium")
            axis.legend(fontsize="small", loc="upper left")
        axes[0].set(ylabel="inner product of the vectors")
