"""Pictures of the pages that are drawn from the pages' own tables, so that each figure has one source.

python docs/site/pictures.py        (writes docs/*.svg, some seconds)
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from candax.pictures import PALETTE, colors, label_ends, save_picture

DOCS = OUT = Path(__file__).parents[1]
Row = dict[str, str]
# Of a measure or a data set, in all pictures here.
_LOOKS = dict(zip(("MEN", "Rare Words", "SimLex"), PALETTE, strict=False))
_LNS_NAMES = {"unigram + sampled_softmax": "unigram", "log_uniform + sampled_softmax": "log_uniform"}


# Where there is room beside a sampler's points.
_COMPARE_LABELS = {
    "log_uniform": (14, 0.405),
    "unigram": (14, 0.374),
    "uniform": (13, 0.17),
    "top_k": (112, 0.36),
    "all classes": (155, 0.4),
}


def table(page: str, *headings: str) -> list[Row]:
    """The rows of the first table of a page that has all of some headings, by the headings; of equal ones "time 2"."""
    for block in re.findall(r"(?:^\|.*\n)+", (DOCS / page).read_text(encoding="utf-8"), re.MULTILINE):
        first, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        if set(headings) <= set(first):
            names = [
                f"{name} {first[:at].count(name) + 1}" if name in first[:at] else name for at, name in enumerate(first)
            ]
            return [dict(zip(names, row, strict=True)) for row in rows]
    raise ValueError(f"{page}: no table with the headings {headings}.")


def number(text: str) -> tuple[float, float, float]:
    """Middle, lowest and highest: of ``.0424(1)``, ``.989 (.986 to .994)``, ``0.408 (99 %)`` or ``1,234``."""
    plain = text.replace(",", "")
    found = [float(each) for each in re.findall(r"-?\d*\.?\d+", plain)]
    if not found:
        return (np.nan,) * 3
    if " to " in plain:
        return found[0], found[1], found[2]
    if spread := re.match(r"-?\d*\.?(\d*)\((\d+)\)", plain):
        error = float(spread[2]) * 10.0 ** -len(spread[1])
        return found[0], found[0] - error, found[0] + error
    return (found[0],) * 3


def _lines(axis: Any, x: Sequence[float], rows: Sequence[Row], names: Sequence[str], color_of: dict[str, str]) -> None:
    for name in names:
        middle, low, high = np.array([number(row[name]) for row in rows]).T
        error = np.abs(np.stack([middle - low, high - middle]))
        axis.errorbar(x, middle, error, marker="o", capsize=3, color=color_of[name], label="_")
        axis.plot(x, middle, color=color_of[name], label=name)


def word2vec() -> None:
    """Scores against k, shared words and the exponent."""
    page = "word2vec_questions.md"
    for name, heading, label, scale in (
        ("k", "k", "k, noise words per pair", "log"),
        ("draws", "words that a run shares", "words that a run shares", "log"),
        ("power", "exponent", "exponent of the noise's frequencies", "linear"),
    ):
        rows = [row for row in table(page, heading, *_LOOKS) if row["MEN"]]
        with save_picture(OUT / f"word2vec_{name}.svg", columns=1, size=(6, 3.2), share_y=False) as (axis,):
            axis.set(xlabel=label, ylabel="rank correlation", xscale=scale)
            _lines(axis, [number(row[heading])[0] for row in rows], rows, list(_LOOKS), _LOOKS)
            label_ends(axis, gap=0.08)


def lns() -> None:
    """Precision and time of the methods as multiples of the full softmax's, on three data sets."""
    sets = ("python-stdlib", "yso-en", "acl-authors")
    full, _, *rows = table("papers/lns.md", "method", *sets)  # after the full softmax top_k, which is elsewhere
    times = ("time", "time 2", "time 3")
    color_of = colors([_LNS_NAMES.get(row["method"], row["method"]) for row in rows])
    with save_picture(OUT / "lns_methods.svg", columns=3, size=(9.4, 4.4), share_y=True) as axes:
        for axis, name, time in zip(axes, sets, times, strict=True):
            for row, marker in zip(rows, "osv^D*P", strict=True):
                place = [number(row[time])[0]], [number(row[name])[0] / number(full[name])[0]]
                color = color_of[_LNS_NAMES.get(row["method"], row["method"])]
                axis.plot(*place, marker, markersize=8, color=color, label=row["method"])
            axis.set(title=name, xlabel="times as quick", ylim=(0.6, 1.02))
        axes[0].set_ylabel("share of the full softmax's P@1")
        handles, names = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(handles, names, loc="outside lower center", ncols=3, fontsize="small")


def ann() -> None:
    """Tables 3, 5 and 6 of ANN Softmax."""
    page = "papers/ann.md"
    rows = table(page, "ArcFace, method", "rank-1", "top-1")
    shown = {row["ArcFace, method"].split(" (")[0]: row for row in reversed(rows)}
    color_of = colors(list(shown), reference="all classes")
    with save_picture(OUT / "ann_methods.svg", columns=2, size=(8.4, 2.8), share_y=True) as axes:
        for axis, name in zip(axes, ("rank-1", "top-1"), strict=True):
            widths = [number(row[name])[0] for row in shown.values()]
            axis.barh(list(shown), widths, color=[color_of[name] for name in shown])
            axis.set(xlabel=name)
            axis.grid(axis="y", visible=False)
    parts = ("retrieval", "forward", "loss", "backward", "update, builds")
    rows = table(page, "ms", *parts, "step")
    with save_picture(OUT / "ann_profile.svg", columns=1, size=(7.4, 3), share_y=False) as (axis,):
        below = np.zeros(len(rows))
        for part, color in zip(parts, PALETTE, strict=False):
            widths = np.array([number(row[part])[0] for row in rows])
            axis.barh([row["ms"] for row in rows], widths, left=below, color=color, label=part)
            below += widths
        whole = [number(row["step"])[0] for row in rows]
        axis.plot(whole, [row["ms"] for row in rows], "D", color="black", label="whole step, fused by XLA")
        axis.set(xlabel="milliseconds, part by part")
        axis.invert_yaxis()
        axis.grid(axis="y", visible=False)
        axis.legend(fontsize="small")
    sizes = ("1,000", "10,000")
    rows = [row for row in table(page, "top-1", *sizes) if number(row[sizes[0]])[0] < 1]
    color_of = colors([row["top-1"] for row in rows], reference="all classes")
    with save_picture(OUT / "ann_scale.svg", columns=1, size=(6, 3), share_y=False) as (axis,):
        axis.set(xlabel="classes", ylabel="top-1 (mean and range of 3 seeds)", xscale="log", ylim=(0.5, 1))
        for row in rows:
            middle, low, high = np.array([number(row[size]) for size in sizes]).T
            look = {"color": color_of[row["top-1"]]}
            error = np.abs([middle - low, high - middle])
            axis.errorbar([1e3, 1e4], middle, error, marker="o", capsize=3, label="_", **look)
            axis.plot([1e3, 1e4], middle, label=row["top-1"], **look)
        label_ends(axis, gap=0.09)


def compare() -> None:
    """Precision against time per step, of the pairs that ``candax compare`` has trained."""
    rows = table("start.md", "sampler", "loss", "P@1", "ms per step")
    losses = dict(zip(("full_softmax", "sampled_softmax", "css"), "so^", strict=True))
    color_of = colors([row["sampler"] for row in rows], reference="all classes")
    with save_picture(OUT / "compare_pairs.svg", columns=1, size=(7, 3.4), share_y=False) as (axis,):
        axis.set(xlabel="milliseconds per step", ylabel="precision at 1", xscale="log", xlim=(8, 400), ylim=(0, 0.46))
        for row in rows:
            look = {"color": color_of[row["sampler"]], "markersize": 7}
            axis.plot(number(row["ms per step"])[0], number(row["P@1"])[0], losses[row["loss"]], **look)
        for name, place in _COMPARE_LABELS.items():
            axis.text(*place, name, color=color_of[name], fontsize="small")
        for name, marker in list(losses.items())[1:]:
            axis.plot([], [], marker, color="#555555", label=name)
        axis.set_xticks([10, 30, 100, 300], ["10", "30", "100", "300"])
        axis.minorticks_off()
        axis.legend(fontsize="small", loc="center right")


PICTURES: tuple[Callable[[], None], ...] = (compare, word2vec, lns, ann)


if __name__ == "__main__":
    for draw in PICTURES:
        draw()
