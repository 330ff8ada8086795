"""What the README shows runs as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_notebook_example_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    # As a user runs it, and quicker: the suite's compilation without optimisation does not pay for 300 steps.
    environment = {**os.environ, "XLA_FLAGS": ""}
    check = code + "\nprint('steps', int(state.step))"
    done = subprocess.run([sys.executable, "-c", check], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "p_at_1" in done.stdout
    assert "steps 300" in done.stdout


def test_pictures_and_files_that_it_names_exist():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (root / link).exists(), link
    for name in re.findall(r"`((?:candax|tests|benchmarks|docs)/[\w/.]*)`", README):
        assert (root / name).exists(), name
