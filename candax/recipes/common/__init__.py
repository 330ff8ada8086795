"""What recipes and the papers' studies share: settings of a command, the runner, one table and one picture."""

from candax.recipes.common.report import Column, Line, Panel, bars, curves, over, relative, sweep
from candax.recipes.common.settings import Count, NonNegative, NotNegative, Out, Positive, Settings, Share
from candax.recipes.common.study import Method, Row, Study, first_finite, run
from candax.recipes.common.training import MEASURED_AT, Training, reaching

__all__ = [
    "MEASURED_AT",
    "Column",
    "Count",
    "Line",
    "Method",
    "NonNegative",
    "NotNegative",
    "Out",
    "Panel",
    "Positive",
    "Row",
    "Settings",
    "Share",
    "Study",
    "Training",
    "bars",
    "curves",
    "first_finite",
    "over",
    "reaching",
    "relative",
    "run",
    "sweep",
]
