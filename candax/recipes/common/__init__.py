"""What recipes and the papers' studies share: settings of a command, the runner, one table and one picture."""

from candax.recipes.common.report import (
    Column,
    Line,
    Panel,
    bars,
    below,
    columns,
    curves,
    dots,
    level,
    over,
    reached,
    reaching,
    relative,
    sweep,
)
from candax.recipes.common.settings import Count, NonNegative, Out, Positive, Settings, Share
from candax.recipes.common.study import Method, Row, Study, first_finite, run
from candax.recipes.common.training import MEASURED_AT, Measure, Run, Training

__all__ = [
    "MEASURED_AT",
    "Column",
    "Count",
    "Line",
    "Measure",
    "Method",
    "NonNegative",
    "Out",
    "Panel",
    "Positive",
    "Row",
    "Run",
    "Settings",
    "Share",
    "Study",
    "Training",
    "bars",
    "below",
    "columns",
    "curves",
    "dots",
    "first_finite",
    "level",
    "over",
    "reached",
    "reaching",
    "relative",
    "run",
    "sweep",
]
