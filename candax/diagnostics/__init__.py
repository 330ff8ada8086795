"""Diagnostics: how far sampled losses are from the full softmax, against the number of samples.

``diagnose`` measures, ``table`` and ``draw`` show, ``pairs`` lists sampler x loss pairs.
"""

from candax.diagnostics.diagnosing import diagnose
from candax.diagnostics.methods import Method, pairs
from candax.diagnostics.report import draw, table
from candax.diagnostics.result import Diagnostics
from candax.diagnostics.statistics import Measure

__all__ = ["Diagnostics", "Measure", "Method", "diagnose", "draw", "pairs", "table"]
