"""The parts of the campaign, by name."""

from tests.campaign import fuzz

PARTS = {"fuzz": fuzz.PART}
