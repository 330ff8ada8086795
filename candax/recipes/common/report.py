"""One table and one picture for all studies: columns of figures, and panels of lines."""

import dataclasses
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Shaped
from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

Row: TypeAlias = dict[str, Any]
# Computes a figure that depends on other rows: (row, all rows) -> value.
Of: TypeAlias = Callable[[Row, Sequence[Row]], Any]
# A key of the row's curve, or a function of the row.
Source: TypeAlias = str | Callable[[Row], Any]
Where: TypeAlias = Callable[[Row], bool]
_MOST_SIDE_BY_SIDE = 2  # a page is narrow
_MOST_LABELS_AT_LINES = 8
# Widths of titles, in characters: of a panel's title, and of the picture's title per inch.
_TITLE, _CHARACTERS_PER_INCH = 54, 12
# As a share of the axis: lines whose ends are farther apart get a legend.
_SAME_END = 0.1


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        heading: above it.
        name: of the figure in a row.
        format: of numbers, as in ``format(value, ".3f")``.
        of: computes the figure where it is not in the row itself.
        spread: whether the lowest and the highest of the seeds are shown too.
    """

    heading: str
    name: str
    format: str = ""
    of: Of | None = None
    spread: bool = False

    def value(self, row: Row, rows: Sequence[Row]) -> Any:
        """The figure."""
        return row.get(self.name) if self.of is None else self.of(row, rows)

    def text(self, row: Row) -> str:
        """What the table shows for a row."""
        shown = self._text(row.get(self.name))
        each = row.get(f"{self.name}_by_seed", ())
        if not self.spread or len(each) < 2:
            return shown
        return f"{shown} ({self._text(min(each))} to {self._text(max(each))})"

    def _text(self, value: Any) -> str:
        if value is None:
            return "-"
        if isinstance(value, list | tuple):
            return ", ".join(map(self._text, value))
        return format(value, self.format) if isinstance(value, int | float) else str(value)


def columns(**formats: str) -> list[Column]:
    """Columns by the names of figures, with their formats; headings are the names.

    Example:
        >>> [column.heading for column in columns(method="", ms_per_step=".1f")]
        ['method', 'ms per step']
    """
    return [Column(name.replace("_", " "), name, form) for name, form in formats.items()]


def relative(name: str, *, to: str = "full_softmax", same: Sequence[str] = ()) -> Of:
    """A figure as a multiple of that of the method ``to``, among rows with the ``same`` labels."""
    return _compared(name, to, same, lambda own, its: own / max(its, 1e-12))


def below(name: str, *, to: str = "full_softmax", same: Sequence[str] = ()) -> Of:
    """How far a figure is below that of the method ``to``."""
    return _compared(name, to, same, lambda own, its: its - own)


def over(name: str, *, to: str = "full_softmax", same: Sequence[str] = ()) -> Of:
    """The inverse of ``relative``: the figure of the method ``to`` as a multiple of this row's."""
    return _compared(name, to, same, lambda own, its: 1 / max(own / max(its, 1e-12), 1e-12))


def _compared(name: str, to: str, same: Sequence[str], how: Callable[[float, float], float]) -> Of:
    """A comparison of a row's figure with that of the method ``to``; None where one of the two is missing."""

    def of(row: Row, rows: Sequence[Row]) -> float | None:
        own, its = row.get(name), (_reference(row, rows, to, same) or {}).get(name)
        return None if own is None or its is None else how(own, its)

    return of


def reaching(curve: Mapping[str, Sequence[float]], score: str, threshold: float, along: str) -> float | None:
    """Where along a curve, by straight lines, a score first reaches a threshold; None if it never does.

    That is the first point if the score is there already: what came before was not measured.

    Example:
        >>> reaching({"step": [10, 20], "p_at_1": [0.2, 0.4]}, "p_at_1", 0.3, "step")
        15.0
    """
    x, y = np.asarray(curve[along], float), np.asarray(curve[score], float)
    reached = np.flatnonzero(y >= threshold)
    if not reached.size:
        return None
    line = slice(max(reached[0] - 1, 0), reached[0] + 1)
    return float(np.interp(threshold, y[line], x[line]))


def reached(score: str, share: float, along: str, *, to: str = "full_softmax") -> Of:
    """Where along its curve a row first reaches a share of the last score of the method ``to``; None if never."""

    def of(row: Row, rows: Sequence[Row]) -> float | None:
        reference = _reference(row, rows, to, ())
        if reference is None or not row.get("curve"):
            return None
        return reaching(row["curve"], score, share * reference["curve"][score][-1], along)

    return of


def _reference(row: Row, rows: Sequence[Row], method: str, same: Sequence[str]) -> Row | None:
    alike = (other for other in rows if all(other.get(label) == row.get(label) for label in same))
    return next((other for other in alike if other.get("method") == method), None)


def table(title: str, columns: Sequence[Column], rows: Sequence[Row], caption: str | None = None) -> Table:
    """A table of the rows; columns of words are aligned to the left, those of numbers to the right."""
    # By rich, which draws the progress bars too: polars or pandas would be one more dependency, for printing alone.
    told = caption and escape(caption)
    found = Table(title=escape(title), box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False, caption=told)
    for column in columns:
        words = any(isinstance(row.get(column.name), str) for row in rows)
        found.add_column(escape(column.heading), justify="left" if words else "right", no_wrap=True)
    for row in rows:
        found.add_row(*(escape(column.text(row)) for column in columns))
    return found


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: in the legend. In "a, b" the part before the last comma decides the colour, the rest the style.
        x: along the horizontal axis; None: a thin horizontal line from one end to the other, at the only ``y``.
        y: along the vertical one.
        style: options of ``Axes.plot``, in addition to the look that the label decides.
        spread: lowest and highest for each point, drawn as bars.
        bottom: if given, bars are drawn instead, which stand on these heights.
        right: whether the line belongs to a second vertical axis, from 0 to 1.
    """

    label: str
    x: Shaped[np.ndarray, " n"] | Sequence[Any] | None
    y: Shaped[np.ndarray, " n"] | Sequence[Any]
    style: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spread: tuple[Any, Any] | None = None
    bottom: Sequence[float] | None = None
    right: bool = False

    def draw(self, axis: Any, look: Mapping[str, Any]) -> None:
        """Adds the line to axes."""
        look = {"label": self.label, **look, **self.style}
        if self.x is None:
            axis.axhline(self.y[0], color="black", linewidth=1, linestyle=":", label=self.label)
        elif self.bottom is not None:
            axis.bar(self.x, self.y, bottom=self.bottom, label=self.label, color=look.get("color"))
        elif self.spread is not None:
            middle = np.asarray(self.y)
            errors = np.abs(np.stack([middle - self.spread[0], self.spread[1] - middle]))
            axis.errorbar(self.x, self.y, yerr=errors, capsize=4, **look)
        else:
            # A line of one point would not be seen.
            axis.plot(self.x, self.y, **({"marker": "o", **look} if len(self.y) == 1 else look))


Lines: TypeAlias = Callable[[Sequence[Row]], list[Line]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Axes of the picture.

    Attributes:
        lines: a function that makes lines from the rows, or several such functions.
        axes: options of ``Axes.set``. Panels that all have the same ``ylabel`` share one vertical axis.
    """

    lines: Lines | Sequence[Lines]
    axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def of(self, rows: Sequence[Row]) -> list[Line]:
        """The lines of some rows."""
        makers = [self.lines] if callable(self.lines) else self.lines
        return [line for maker in makers for line in maker(rows)]


def curves(x: Source, y: Source, *, label: Source = "method", where: Where = bool, **style: Any) -> Lines:
    """A line for each row that has a curve."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        shown = (row for row in rows if row.get("curve") and where(row))
        return [Line(_label(row, label), _of(row, x), _of(row, y), style) for row in shown]

    return lines


def sweep(x: str, y: str, *, by: Source = "method", where: Where = bool, right: bool = False, **style: Any) -> Lines:
    """A line for each method (or other label ``by``), a point on it for each of its rows."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        groups: dict[str, list[Row]] = {}
        for row in rows:
            if where(row) and None not in (row.get(x), row.get(y)):
                groups.setdefault(_label(row, by), []).append(row)
        return [line(label, group) for label, group in groups.items()]

    def line(label: str, rows: list[Row]) -> Line:
        along, values = ([row[name] for row in rows] for name in (x, y))
        each = [row.get(f"{y}_by_seed", [row[y]]) for row in rows]
        several = any(len(of) > 1 for of in each)
        spread = ([min(of) for of in each], [max(of) for of in each]) if several else None
        return Line(label, along, values, {"marker": "o", **style}, spread, right=right)

    return lines


def bars(names: Sequence[str], *, by: str = "method", where: Where = bool) -> Lines:
    """A bar for each row, in which several figures are stacked."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        rows = [row for row in rows if where(row)]
        heights = np.array([[row[name] for row in rows] for name in names])
        below = np.cumsum(heights, axis=0) - heights
        x = [row[by] for row in rows]
        return [
            Line(name.replace("_", " "), x, height.tolist(), bottom=bottom.tolist())
            for name, height, bottom in zip(names, heights, below, strict=True)
        ]

    return lines


def level(label: str, height: Callable[[Sequence[Row]], float | None]) -> Lines:
    """A horizontal line, where there is a height."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        found = height(rows)
        return [] if found is None else [Line(label, None, [found])]

    return lines


def figure_of(method: str, name: str) -> Callable[[Sequence[Row]], float | None]:
    """The height of a level: a figure of the row of a method."""
    return lambda rows: next((row[name] for row in rows if row["method"] == method), None)


def dots(x: str, *, label: Source, by: str, reference: str = "full_softmax", where: Where = bool) -> Lines:
    """Rows under each other, one dot each, in the colour of their group ``by``; a line marks its reference."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        groups: dict[str, list[Row]] = {}
        for row in reversed([row for row in rows if where(row)]):  # axes begin at the bottom
            groups.setdefault(row[by], []).append(row)
        found = []
        for name, group in groups.items():
            places = [_label(row, label) for row in group]
            found.append(Line(name, [row[x] for row in group], places, {"marker": "o", "linestyle": ""}))
            at = [row[x] for row in group if row.get("method") == reference]
            found += [Line(name, [value] * 2, [places[0], places[-1]], {"label": None, "alpha": 0.5}) for value in at]
        return found

    return lines


def _of(row: Row, source: Source) -> Any:
    return row["curve"][source] if isinstance(source, str) else source(row)


def _label(row: Row, source: Source) -> str:
    return str(row[source] if isinstance(source, str) else source(row))


def draw(title: str, panels: Sequence[Panel], rows: Sequence[Row], reference: str, path: Path) -> None:
    """Draws the panels side by side; a label has the same look in all of them, and the reference is black."""
    from candax.pictures import label_ends, save_picture  # loads matplotlib, which the help of a command need not

    drawn = [panel.of(rows) for panel in panels]
    labels = [{line.label for line in lines} for lines in drawn]
    looks = _looks([line.label for lines in drawn for line in lines], reference)
    one_legend = len(panels) > 1 and all(names == labels[0] for names in labels)
    share_y = len({panel.axes.get("ylabel") for panel in panels}) == 1
    rows_of_axes = -(-len(panels) // _MOST_SIDE_BY_SIDE)
    columns = -(-len(panels) // rows_of_axes)
    size = (1.5 + 3.8 * columns, 1.2 + 3.3 * rows_of_axes)
    legend: tuple[list[Any], list[str]] = ([], [])
    with save_picture(path, columns=columns, rows=rows_of_axes, size=size, share_y=share_y) as axes:
        for axis, panel, lines in zip(axes, panels, drawn, strict=False):
            right = _second_axis(axis, lines)
            for line in lines:
                line.draw(right if line.right else axis, looks[line.label])
            axis.set(**panel.axes)
            if share_y and not axis.get_subplotspec().is_first_col():
                axis.set_ylabel("")
            axis.set_title(_wrapped(axis.get_title(), _TITLE))
            if _end_together(lines):
                _label_levels(axis, lines)
                label_ends(axis, gap=0.055)
            elif not one_legend and (named := _named(axis, right))[1]:
                # On the axes that are drawn last, or else the lines of the other would go through it.
                (right or axis).legend(*named, fontsize="small")
            legend = legend if legend[1] else _named(axis, right)
        # The names of files in it may have several dollar signs, which are no formula.
        wrapped = _wrapped(title, int(_CHARACTERS_PER_INCH * size[0]))
        axes[0].figure.suptitle(wrapped, fontsize="medium", parse_math=False)
        if one_legend and not any(axis.texts for axis in axes):
            axes[0].figure.legend(*legend, loc="outside lower center", ncols=3, fontsize="small")


def _second_axis(axis: Any, lines: Sequence[Line]) -> Any:
    """Axes with a scale at the right, called as the lines that belong to it; None without such lines."""
    names = [line.label.removesuffix(" (right)") for line in lines if line.right]
    if not names:
        return None
    right = axis.twinx()
    right.set(ylim=(0, 1), ylabel=", ".join(dict.fromkeys(names)))
    right.grid(visible=False)  # the left one's is enough
    right.spines["right"].set_visible(True)
    return right


def _named(*axes: Any) -> tuple[list[Any], list[str]]:
    """Handles and names for a legend of several axes."""
    found = [axis.get_legend_handles_labels() for axis in axes if axis is not None]
    return [handle for handles, _ in found for handle in handles], [name for _, names in found for name in names]


def _wrapped(text: str, width: int) -> str:
    return "\n".join(part for line in text.splitlines() for part in textwrap.wrap(line, width))


def _end_together(lines: Sequence[Line]) -> bool:
    """Whether all lines are levels, or curves that end at about the same number, so that labels fit beside the ends."""
    found = [np.asarray(line.x) for line in lines if line.x is not None]
    if len(lines) > _MOST_LABELS_AT_LINES or any(line.bottom or line.right for line in lines):
        return False
    if not found or not all(x.size and np.issubdtype(x.dtype, np.number) for x in found):
        return False
    ends, every = [x[-1] for x in found], np.concatenate(found)
    return bool(np.ptp(ends) <= _SAME_END * np.ptp(every))


def _label_levels(axis: Any, lines: Sequence[Line]) -> None:
    """Writes the label of a horizontal line under it, at the right."""
    for line in lines:
        if line.x is None:
            place = {"transform": axis.get_yaxis_transform(), "ha": "right", "va": "top", "fontsize": "small"}
            axis.text(0.97, line.y[0], line.label, **place)
    for drawn in axis.get_lines():
        if drawn.get_label() in {line.label for line in lines if line.x is None}:
            drawn.set_label("_level")


def _looks(labels: Sequence[str], reference: str) -> dict[str, dict[str, Any]]:
    """Colours by what comes before the last comma of a label, styles by the place among those of one colour."""
    from candax.pictures import LINE_STYLES, colors

    groups: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        groups.setdefault(label.rpartition(", ")[0] or label, []).append(label)
    looks: dict[str, dict[str, Any]] = {}
    color_of = colors([name for name in groups if name != reference])
    for name, color in color_of.items():
        for place, label in enumerate(groups[name]):
            looks[label] = {"color": color, "linestyle": LINE_STYLES[place % len(LINE_STYLES)]}
    for label in groups.get(reference, ()):
        looks[label] = {"color": "black", "linewidth": 2.5}
    return looks
