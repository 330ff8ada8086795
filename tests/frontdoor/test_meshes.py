"""Class rows over many devices, in a process that has them."""

from pathlib import Path

from tests.devices import run_cases


def test_on_eight_devices() -> None:
    run_cases(Path(__file__).with_name("on_eight_devices.py"))
