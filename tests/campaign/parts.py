"""The parts of the campaign, by name."""

from tests.campaign import devices, disk, floors, fuzz, kill, types

PARTS = {"fuzz": fuzz.PART, "kill": kill.PART, "disk": disk.PART, "devices": devices.PART, "types": types.PART}
# Only when asked for: it installs.
EXTRA = {"floors": floors.PART}
