"""A diagnosis as a table and as a picture."""

import functools
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from candax.checks import checked
from candax.diagnostics.result import Diagnostics
from candax.diagnostics.statistics import Measure

# Field -> heading. Numbers with their errors take 9 characters: more columns would not fit into 80.
_TABLES = {
    "Z and log Z": {
        "z_bias": "Z\nbias",
        "z_relative_error": "Z\nerror",
        "log_z_bias": "log Z\nbias",
        "log_z_variance": "log Z\nvariance",
        "log_z_error": "log Z\nerror",
    },
    "p(true) and candidates": {
        "p_true_bias": "p(true)\nbias",
        "p_true_variance": "p(true)\nvariance",
        "p_true_relative_error": "p(true)\nrel.error",
        "effective_sample_size": "effective\nsamples",
        "top_k_share": "top-k\nshare",
    },
    "gradients to embeddings, and to class vectors and biases": {
        "embedding_gradient_bias": "embedding\nbias",
        "embedding_gradient_cosine": "\ncosine",
        "class_gradient_bias": "class\nbias",
        "class_gradient_noise": "\nnoise",
        "class_gradient_cosine": "\ncosine",
    },
    "what a training comes to, and what it costs": {
        "optimum_bias": "optimum\nbias",
        "class_gradient_noise": "noise\nper step",
        "step_ms": "ms per\nstep",
    },
}


class _Panel(NamedTuple):
    measure: str
    title: str
    scale: str
    absolute: bool = False


_PANELS = (
    _Panel("log_z_bias", "log Z\n|bias| in nats", "log", absolute=True),
    _Panel("log_z_error", "log Z\nr.m.s. error in nats", "log"),
    _Panel("class_gradient_bias", "class gradient\nrelative bias", "log"),
    _Panel("class_gradient_cosine", "class gradient\ncosine to the exact one", "linear"),
    _Panel("effective_sample_size", "candidates\neffective sample size", "log"),
    _Panel("top_k_share", "candidates\nshare of the top {top_k} held", "linear"),
)
_MARKERS = "osv^D*PX<>"


@checked
def table(result: Diagnostics) -> Group:
    """Tables for a rich console: Z and log Z; p(true) and candidates; gradients; where training ends and its cost.

    1.234(5) is 1.234 with a standard error of 0.005, rounded up. All errors are root mean squares. Biases and errors of
    Z and of gradients are relative, log Z is in nats. ``Diagnostics`` has the measures that are not shown.
    """
    about = (
        f"{result.num_classes:,} classes, {result.num_examples} examples, {result.num_draws} draws; top-k: "
        f"{result.top_k}\n1.23(4): standard error 0.04"
    )
    if any(result.only_this_batch):
        about += "; *: random through the choice of the batch, which is fixed here"
    about += (
        f"\nFull softmax: {result.full_ms:.3g} ms per step.\n"
        "Gradient bias: how far one step's mean is from the full softmax's step at this model.\n"
        "Optimum bias: how much of a step is left, in the mean, where the probabilities are\n"
        "right already (0: a long training ends where the full softmax does).\n"
        "Noise: what differs from step to step; more steps or a lower rate average it out."
    )
    tables = [_table(result, title, columns) for title, columns in _TABLES.items()]
    shown = [table for table in tables if table.row_count]
    return Group(*shown, Text(about))


def _table(result: Diagnostics, title: str, columns: dict[str, str]) -> Table:
    """One of the tables, with the methods that have any of its measures."""
    table = Table(title=title, box=SIMPLE, padding=0, show_edge=False)
    table.add_column("sampler\nloss", no_wrap=True)
    for heading in ("S", *columns.values()):
        table.add_column(heading, justify="right", no_wrap=True)
    for m in range(len(result.sampler_names)):
        if not any(np.isfinite(getattr(result, field).value[m]).any() for field in columns):
            continue
        name = result.sampler_names[m] + "*" * result.only_this_batch[m]
        # One row of many lines per method: the names take no more than their own width, and are not repeated.
        cells = ["\n".join(str(number) for number in result.num_sampled)]
        for field in columns:
            measure: Measure = getattr(result, field)
            pairs = zip(measure.value[m], measure.standard_error[m], strict=True)
            cells.append("\n".join(with_error(*pair) for pair in pairs))
        table.add_row(f"{name}\n{result.loss_names[m]}", *cells, end_section=True)
    return table


def with_error(value: float, standard_error: float) -> str:
    """A number and, in brackets, its standard error in units of its last digit, rounded up; at most 10 characters.

    An error too small for the room there is shows as one unit of the last digit.

    Example:
        >>> with_error(-0.01234, 0.00031), with_error(123.4, 5.0), with_error(81234.0, 310.0), with_error(0.5, 0.0)
        ('-0.0123(4)', '123(5)', '8.1(1)e4', '0.5')
    """
    if not (math.isfinite(value) and math.isfinite(standard_error)):
        return "-"
    if standard_error <= 1e-6 * abs(value):  # nothing but rounding
        return f"{value:.3g}"
    largest = math.floor(math.log10(max(abs(value), standard_error)))
    plain = -3 <= largest < 4 and standard_error < 10
    exponent = 0 if plain else largest
    value, standard_error = value / 10**exponent, standard_error / 10**exponent
    room = min(4, 3 - largest) if plain else 1
    digits = min(room, max(0, -math.floor(math.log10(standard_error))))
    last = math.ceil(round(standard_error * 10**digits, 6))
    if last == 10 and digits:
        digits, last = digits - 1, 1
    return f"{value:.{digits}f}({last})" + (f"e{exponent}" if exponent else "")


@checked
def draw(result: Diagnostics, path: Path) -> None:
    """Errors, gradients and candidates against the number of candidates, as a PNG or an SVG file.

    Samplers are told apart by colour and marker, losses by line. Bars are standard errors; on a logarithmic axis, what
    is 0 is not drawn.
    """
    # Not imported above: pictures choose a drawing backend without a display, which importing candax must not do.
    from candax.pictures import LINE_STYLES, colors, save_picture

    samplers, losses = (list(dict.fromkeys(names)) for names in (result.sampler_names, result.loss_names))
    handles: dict[str, Any] = {}
    color_of = colors(samplers)
    with save_picture(path, columns=2, rows=-(-len(_PANELS) // 2), size=(9.0, 9.6), share_y=False) as axes:
        for axis, panel in zip(axes, _PANELS, strict=True):
            measure: Measure = getattr(result, panel.measure)
            for m, (sampler, loss) in enumerate(zip(result.sampler_names, result.loss_names, strict=True)):
                values = np.abs(measure.value[m]) if panel.absolute else measure.value[m]
                if not np.isfinite(values).any():
                    continue
                place = samplers.index(sampler)
                handles[f"{sampler}, {loss}"] = axis.errorbar(
                    result.num_candidates.value[m],
                    values,
                    measure.standard_error[m],
                    color=color_of[sampler],
                    marker=_MARKERS[place % len(_MARKERS)],
                    linestyle=LINE_STYLES[losses.index(loss) % len(LINE_STYLES)],
                    capsize=3,
                )
            axis.set_xscale("log")
            axis.set_title(panel.title.format(top_k=result.top_k))
            axis.set_xlabel("candidates seen")
            if panel.scale == "log":
                axis.set_yscale("log", nonpositive="clip")
                axis.yaxis.set_major_formatter(lambda number, _: f"{number:g}")
                axis.yaxis.set_minor_formatter(functools.partial(_between_powers_of_ten, axis))
        figure = axes[0].figure
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(3, len(handles)))
        figure.suptitle(f"{result.num_classes:,} classes, {result.num_examples} examples, {result.num_draws} draws")


def _between_powers_of_ten(axis: Any, number: float, position: int | None) -> str:
    """Labels for 2 and 5 times a power of ten, where few powers of ten are on the axis."""
    del position
    low, high = axis.get_ylim()
    leading = round(number / 10 ** math.floor(math.log10(number)))
    return f"{number:g}" if high < 100 * low and leading in (2, 5) else ""
