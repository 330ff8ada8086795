"""The parts of the campaign, by name."""

from tests.campaign import fuzz, kill

PARTS = {"fuzz": fuzz.PART, "kill": kill.PART}
