"""One table and one picture for all studies: columns of figures, and panels of lines."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Shaped
from rich.box import SIMPLE
from rich.table import Table

from candax.pictures import save_picture

Row: TypeAlias = dict[str, Any]
# Of a figure that depends on other rows: (row, all rows) -> value.
Of: TypeAlias = Callable[[Row, Sequence[Row]], Any]
# A key of the row's curve, or a function of the row.
Source: TypeAlias = str | Callable[[Row], Any]
Where: TypeAlias = Callable[[Row], bool]
_STYLES = ("-", "--", ":", "-.")


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes:
        heading: above it.
        name: of the figure in a row.
        format: of numbers, as in ``format(value, ".3f")``.
        of: computes the figure, for those that the row does not have.
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
        """What the table shows of it."""
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


def relative(name: str, *, to: str = "full_softmax", same: Sequence[str] = ()) -> Of:
    """A figure as a multiple of that of the method ``to``, among rows with the ``same`` labels."""

    def of(row: Row, rows: Sequence[Row]) -> float | None:
        reference = _reference(row, rows, to, same)
        if reference is None or None in (row.get(name), reference.get(name)):
            return None
        return row[name] / max(reference[name], 1e-12)

    return of


def over(name: str, *, to: str = "full_softmax", same: Sequence[str] = ()) -> Of:
    """The inverse: how many times a figure of the method ``to`` is this row's."""
    multiple = relative(name, to=to, same=same)

    def of(row: Row, rows: Sequence[Row]) -> float | None:
        found = multiple(row, rows)
        return None if found is None else 1 / max(found, 1e-12)

    return of


def _reference(row: Row, rows: Sequence[Row], method: str, same: Sequence[str]) -> Row | None:
    alike = (other for other in rows if all(other.get(label) == row.get(label) for label in same))
    return next((other for other in alike if other.get("method") == method), None)


def table(title: str, columns: Sequence[Column], rows: Sequence[Row], caption: str | None = None) -> Table:
    """A row for each of the rows; columns of words to the left, of numbers to the right."""
    found = Table(title=title, box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False, caption=caption)
    for column in columns:
        words = any(isinstance(row.get(column.name), str) for row in rows)
        found.add_column(column.heading, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        found.add_row(*(column.text(row) for column in columns))
    return found


@dataclasses.dataclass(frozen=True)
class Line:
    """A line of a panel.

    Attributes:
        label: in the legend. Of "a, b" the part before the last comma makes the colour, the rest the style.
        x: along the horizontal axis.
        y: along the vertical one.
        style: of ``Axes.plot``, beside what the label makes.
        spread: lowest and highest for each point, drawn as bars.
        bottom: draws bars that stand on these instead.
        right: belongs to a second vertical axis, from 0 to 1.
    """

    label: str
    x: Shaped[np.ndarray, "n"] | Sequence[Any]
    y: Shaped[np.ndarray, "n"] | Sequence[Any]
    style: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    spread: tuple[Any, Any] | None = None
    bottom: Sequence[float] | None = None
    right: bool = False

    def draw(self, axis: Any, look: Mapping[str, Any]) -> None:
        """Adds it to axes."""
        look = {"label": self.label, **look, **self.style}
        if self.bottom is not None:
            axis.bar(self.x, self.y, bottom=self.bottom, label=self.label)
        elif self.spread is not None:
            middle = np.asarray(self.y)
            errors = np.abs(np.stack([middle - self.spread[0], self.spread[1] - middle]))
            axis.errorbar(self.x, self.y, yerr=errors, capsize=4, **look)
        else:
            axis.plot(self.x, self.y, **look)


Lines: TypeAlias = Callable[[Sequence[Row]], list[Line]]


@dataclasses.dataclass(frozen=True)
class Panel:
    """Axes of the picture.

    Attributes:
        lines: makes them of the rows.
        axes: of ``Axes.set``. Where only the first panel has a ``ylabel`` all share one vertical axis.
        level: name of a figure; its value in the first row that has it is a dotted horizontal line.
    """

    lines: Lines
    axes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    level: str | None = None

    def level_of(self, rows: Sequence[Row]) -> float | None:
        """Where the horizontal line is."""
        name = self.level
        return None if name is None else next((row[name] for row in rows if row.get(name) is not None), None)


def curves(x: Source, y: Source, *, label: Source = "method", where: Where = bool, **style: Any) -> Lines:
    """A line for each row that has a curve."""

    def lines(rows: Sequence[Row]) -> list[Line]:
        return [Line(_label(row, label), _of(row, x), _of(row, y), style) for row in rows if _has(row) and where(row)]

    return lines


def _has(row: Row) -> bool:
    return bool(row.get("curve"))


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
    """A bar for each row, of several figures on top of each other."""

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


def _of(row: Row, source: Source) -> Any:
    return row["curve"][source] if isinstance(source, str) else source(row)


def _label(row: Row, source: Source) -> str:
    return str(row[source] if isinstance(source, str) else source(row))


def draw(title: str, panels: Sequence[Panel], rows: Sequence[Row], reference: str, path: Path) -> None:
    """Draws the panels side by side; a label has the same look in all of them, that of the reference is black."""
    drawn = [panel.lines(rows) for panel in panels]
    labels = [{line.label for line in lines} for lines in drawn]
    looks = _looks([line.label for lines in drawn for line in lines], reference)
    one_legend = len(panels) > 1 and all(names == labels[0] for names in labels)
    share_y = not any("ylabel" in panel.axes for panel in panels[1:])
    columns = len(panels)
    with save_picture(path, columns=columns, size=(2 + 5 * columns, 5.5), share_y=share_y) as axes:
        for axis, panel, lines in zip(axes, panels, drawn, strict=True):
            right = axis.twinx() if any(line.right for line in lines) else None
            for line in lines:
                line.draw(right if line.right else axis, looks[line.label])
            if right is not None:
                right.set(ylim=(0, 1))
            level = panel.level_of(rows)
            if level is not None:
                axis.axhline(level, color="black", linewidth=1, linestyle=":", label=panel.level)
            axis.set(**panel.axes)
            if not one_legend and axis.get_legend_handles_labels()[1]:
                axis.legend(fontsize="small")
        axes[0].figure.suptitle(title)
        if one_legend:
            handles, names = axes[0].get_legend_handles_labels()
            axes[0].figure.legend(handles, names, loc="outside lower center", ncols=5, fontsize="small")


def _looks(labels: Sequence[str], reference: str) -> dict[str, dict[str, Any]]:
    """Colours by what comes before the last comma of a label, styles by the place among those of one colour."""
    groups: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        groups.setdefault(label.rpartition(", ")[0] or label, []).append(label)
    looks: dict[str, dict[str, Any]] = {}
    for number, members in enumerate(group for name, group in groups.items() if name != reference):
        for place, label in enumerate(members):
            looks[label] = {"color": f"C{number % 10}", "linestyle": _STYLES[place % len(_STYLES)]}
    for label in groups.get(reference, ()):
        looks[label] = {"color": "black", "linewidth": 2.5}
    return looks
