"""What recipes and the papers' studies share: settings of a command, the runner, one table and one picture."""

from candax.recipes.common.entrants import Contest, columns, entrants, panels
from candax.recipes.common.heads import plain_head
from candax.recipes.common.report import (
    Column,
    Line,
    Panel,
    bars,
    below,
    curves,
    dots,
    level,
    over,
    reached,
    reaching,
    relative,
    sweep,
)
from candax.recipes.common.settings import (
    Count,
    NonNegative,
    NotNegative,
    Out,
    Positive,
    Settings,
    Share,
    writable_folder,
)
from candax.recipes.common.study import Method, Row, Study, first_finite, run
from candax.recipes.common.training import MEASURED_AT, Measure, Run, Training

__all__ = [
    "MEASURED_AT",
    "Column",
    "Contest",
    "Count",
    "Line",
    "Measure",
    "Method",
    "NonNegative",
    "NotNegative",
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
    "entrants",
    "first_finite",
    "level",
    "over",
    "panels",
    "plain_head",
    "reached",
    "reaching",
    "relative",
    "run",
    "sweep",
    "writable_folder",
]
