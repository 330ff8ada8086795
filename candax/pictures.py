"""Pictures in one style: colours that colour-blind readers tell apart, the same for the same method everywhere.

Axes stand side by side in one file, PNG or SVG by its name, which is written atomically and without a display.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure  # not pyplot, which would choose a display, or take away a notebook's

from candax.files import replacing

# Okabe and Ito (2008), for all common kinds of colour blindness, with two dark ones for their yellow, which cannot be
# read on white; black is the reference's.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#555555", "#661100", "#332288")
REFERENCE = "#000000"
# Of lines of one colour.
LINE_STYLES = ("-", "--", ":", "-.")
# Of what stands before the last comma of a label, in small letters: samplers and methods in pictures of many studies.
# Two that share a colour are hardly ever in one picture; where they are, the second gets another.
_PLACES = {
    **{"log_uniform": 0, "uniform": 1, "unigram": 2, "frequency": 2, "frequency-based": 2, "in_batch": 3},
    **{"lsh": 4, "lsh_embedding": 4, "lsh_label": 5, "top_k": 6, "learned_unigram": 7},
    **{"ann_softmax": 0, "knn_softmax": 2, "partial_fc": 7, "lsh_softmax": 4, "hashing_forest": 5, "hf_softmax": 5},
    **{"gensim": 6, "candax": 0, "faiss": 6, "tensorflow": 5},
}
# About the share of an axis' width that a label takes.
_LABEL_WIDTH = 0.3
_STYLE: Any = {
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.titlesize": 9.0,
    "legend.edgecolor": "none",
    "lines.linewidth": 2.0,
    "figure.facecolor": "white",  # also in dark mode: the colours are chosen for white
    "svg.hashsalt": "candax",
}


def colors(names: Sequence[str], *, reference: str = "full_softmax") -> dict[str, str]:
    """A colour for each name: a method's own where it has one, of the others those that are left, in their order.

    Args:
        names: of samplers or methods; of equal ones there is one entry.
        reference: the name that is drawn in black.

    Returns:
        Colours as matplotlib takes them, by name.

    Example:
        >>> colors(["full_softmax", "log_uniform", "mine"])
        {'full_softmax': '#000000', 'log_uniform': '#0072B2', 'mine': '#D55E00'}
    """
    found = {reference: REFERENCE}
    for name in names:
        color = PALETTE[_PLACES.get(name.lower().replace(" ", "_").replace("in-batch", "in_batch"), -1)]
        if name not in found and color not in {PALETTE[-1], *found.values()}:
            found[name] = color
    left = [color for color in PALETTE if color not in found.values()] or list(PALETTE)
    others = [name for name in dict.fromkeys(names) if name not in found]
    found |= {name: left[number % len(left)] for number, name in enumerate(others)}
    return {name: found[name] for name in dict.fromkeys(names)}


def house_style() -> None:
    """Gives the pictures that follow in this program, such as a notebook's, the style of all others.

    Colours in the order of ``PALETTE``, no frame, a faint grid; white behind them in dark mode too.

    Example:
        >>> house_style()
        >>> matplotlib.rcParams["axes.spines.top"]
        False
    """
    matplotlib.rcParams.update(_STYLE)


def label_ends(axis: Any, *, gap: float = 0.045) -> None:
    """Writes each line's label at its right end, in its colour, and moves apart those that would overlap.

    Call it last: limits and scales that are set later move the lines away from their labels.

    Args:
        axis: matplotlib axes with lines that have labels.
        gap: the least distance of two labels, as a share of the axis' height.
    """
    axis.viewLim  # noqa: B018  # reading it settles limits that matplotlib has yet to work out
    lines = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    ends = [
        (axis.transAxes.inverted().transform(axis.transData.transform(line.get_xydata()[-1])), line) for line in lines
    ]
    ends.sort(key=lambda end: float(end[0][1]))
    places: list[tuple[float, float]] = []
    for (x, y), _ in ends:
        places.append((x, max([y, *(below + gap for left, below in places if abs(left - x) < _LABEL_WIDTH)])))
    for place in reversed(range(len(places))):  # and down again, where they have grown beyond the top
        x, height = places[place]
        above = [over - gap for right, over in places[place + 1 :] if abs(right - x) < _LABEL_WIDTH]
        places[place] = x, min([height, 1.0, *above])
    for (x, height), ((_, y), line) in zip(places, ends, strict=True):
        axis.annotate(
            line.get_label(),
            (x, y),
            (x + 0.03, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            color=line.get_color(),
            va="center",
            fontsize="small",
            annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 0.6},  # over lines that go on
        )


@contextlib.contextmanager
def save_picture(path: Path, *, columns: int, size: tuple[float, float], share_y: bool, rows: int = 1) -> Iterator[Any]:
    """Hands out an array of axes, row after row, and writes the picture when the block ends.

    Args:
        path: of the file, which is SVG if it ends so, and PNG else.
        columns: axes side by side.
        size: width and height in inches.
        share_y: whether all axes have one vertical scale.
        rows: of axes; those that nothing is drawn on are left out.
    """
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(rows, columns, sharey=share_y, squeeze=False).ravel()
        yield axes
        for axis in axes:
            axis.set_visible(axis.has_data())
        kind = "svg" if path.suffix == ".svg" else "png"
        told: dict[str, Any] = {"metadata": {"Date": None}} if kind == "svg" else {"dpi": 120}
        with replacing(path) as file:
            figure.savefig(file, format=kind, **told)
