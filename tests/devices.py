"""Runs a file of tests in a process with eight virtual devices; their number must be set before JAX starts."""

import os
import subprocess
import sys
from pathlib import Path


def run_cases(cases: Path, *options: str) -> None:
    """All tests of the file must pass.

    Args:
        cases: the file.
        options: for pytest.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    environment = os.environ | {
        "XLA_FLAGS": f"{flags} --xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
    }
    root = Path(__file__).parents[1]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases), *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800, cwd=root, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
