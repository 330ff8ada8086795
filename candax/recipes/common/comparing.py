"""Rows and picture of commands that compare methods, trained with several seeds, with untrained baselines."""

from collections.abc import Callable, Mapping
from typing import Any

from candax.recipes.common.report import Panel, curves, figure_of, level
from candax.recipes.common.study import Method
from candax.recipes.common.training import Figures


def row(labels: Mapping[str, Any], figures: Callable[..., Figures], *args: Any) -> Method:
    """A row whose figures keep nothing in the study's folder: they are quick, or have a folder of their own."""
    return Method(labels, lambda folder: figures(*args))


def rows_of(
    settings: Any,
    simple: Mapping[str, Callable[[], Figures]],
    chosen: Callable[[Any], Any],
    trained: Callable[[Any, Any, int], Figures],
) -> list[Method]:
    """The rows of the table: the baselines, then each of the chosen methods with each seed.

    Args:
        settings: of the command, with ``methods``, ``seed`` and ``seeds``.
        simple: functions that give the figures of the baselines, which need no training, by name.
        chosen: gives the settings of a method from its name.
        trained: gives the figures of one training from the method's settings, its name and the seed.
    """
    rows = [row({"method": name}, figures) for name, figures in simple.items()]
    for name in settings.methods:
        of = chosen(name)
        seeds = range(settings.seed, settings.seed + settings.seeds)
        rows += [row({"method": name, "seed": seed}, trained, of, name, seed) for seed in seeds]
    return rows


def progress(figure: str, ylabel: str, *, simple: str, of: str, **axes: Any) -> Panel:
    """A figure against training time, and the figure ``of`` the baseline ``simple`` as a horizontal line."""
    lines = [curves("seconds", figure, marker="."), level(simple, figure_of(simple, of))]
    return Panel(lines, {"xlabel": "training time in seconds", "ylabel": ylabel, **axes})
