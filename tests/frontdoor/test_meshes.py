"""Class rows over many devices, in a process that has them."""

from pathlib import Path

import pytest

from tests.devices import run_cases

CASES = Path(__file__).with_name("on_eight_devices.py")


def test_on_eight_devices() -> None:
    run_cases(CASES, "-m", "not slow")


@pytest.mark.slow
def test_on_eight_devices_with_every_kind_of_sampler() -> None:
    run_cases(CASES, "-m", "slow")
