"""Class-parallel training, in processes that have the devices for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).with_name("on_eight_devices.py")


def run_cases(*options: str) -> None:
    """Runs the cases with eight virtual devices; their number must be set before JAX starts."""
    flags = os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(CASES), *options]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1800, cwd=CASES.parents[2], check=False
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_on_eight_devices() -> None:
    run_cases()


@pytest.mark.slow
def test_on_eight_devices_with_every_kind_of_sampler() -> None:
    run_cases("-m", "slow")
