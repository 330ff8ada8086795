"""Diagnostics: how far sampled losses are from the full softmax, against the number of samples.

``diagnose`` measures this, ``table`` and ``draw`` show it, ``pairs`` lists sampler x loss pairs. ``measure_staleness``
says how fast an adaptive sampler falls behind the model between refreshes. ``advise`` says which sampler, loss and
optimizer suit your own label counts.
"""

from candax.diagnostics.advising import Advice, Option, advise
from candax.diagnostics.diagnosing import diagnose
from candax.diagnostics.methods import Method, pairs
from candax.diagnostics.report import draw, table
from candax.diagnostics.result import Diagnostics
from candax.diagnostics.staleness import Staleness, measure_staleness
from candax.diagnostics.statistics import Measure

__all__ = [
    "Advice",
    "Diagnostics",
    "Measure",
    "Method",
    "Option",
    "Staleness",
    "advise",
    "diagnose",
    "draw",
    "measure_staleness",
    "pairs",
    "table",
]
