"""The test suite with the lowest versions that ``pyproject.toml`` allows, and with the newest, in fresh environments.

It installs, so it runs only when it is asked for by ``--part floors``. A trial is one Python of 3.11 to 3.14 that the
machine has.
"""

import shutil
import subprocess
from pathlib import Path

import numpy as np

from tests.campaign.trials import BadError, Part

_ROOT = Path(__file__).parents[2]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
_TESTS = ("-q", "-n", "auto", "-p", "no:cacheprovider")


def trial(rng: np.random.Generator, folder: Path, python: str) -> str:
    """The suite in two environments of one Python."""
    if not shutil.which(python) or subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode:
        return f"{python} is not on this machine"
    for resolution in ("lowest-direct", "highest"):
        what, environment = f"{python}, {resolution} versions", folder / resolution
        _must([python, "-m", "venv", str(environment)], what)
        inside = environment / "bin" / "python"
        _must([str(inside), "-m", "pip", "install", "-q", "uv"], what)
        install = [str(inside), "-m", "uv", "pip", "install", "-q", "--python", str(inside)]
        _must([*install, "--resolution", resolution, f"{_ROOT}[test]"], what)
        _must([str(inside), "-m", "pytest", *_TESTS], what)
    return python


def _must(command: list[str], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=_ROOT)
    if done.returncode:
        raise BadError(f"{what}: {' '.join(command[:4])} ...\n{(done.stdout + done.stderr)[-3000:]}")


PART = Part(trial, 14_400.0, kinds=PYTHONS)
