"""Several processes train as one, by the documented command; a failure ends them all."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from candax.training.launch import launch

SCRIPT = Path(__file__).with_name("two_processes.py")
ROOT = SCRIPT.parents[2]


def results(command: list[str], folder: Path, devices: int) -> list[dict]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, str(SCRIPT), str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return [json.loads(path.read_text()) for path in sorted(folder.parent.glob(f"{folder.name}.*.json"))]


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    together = results(["-m", "candax.training.launch", "2"], tmp_path / "two" / "run", 2)
    (alone,) = results([], tmp_path / "one" / "run", 4)
    assert alone["processes"] == 1
    assert [found["processes"] for found in together] == [2, 2]
    for found in together:
        assert found["devices"] == alone["devices"] == 4
        assert len(found["losses"]) >= 6
        assert found["losses"][:6] == pytest.approx(alone["losses"], rel=1e-5)
        assert found["more"] == pytest.approx(alone["more"], rel=1e-5)
        assert found["p"] == pytest.approx(alone["p"], rel=1e-4)
        assert "processes [0] have run out of data" in found["error"]


def test_one_failure_ends_all() -> None:
    code = "import os, sys, time; sys.exit(3) if os.environ['CANDAX_PROCESS'] == '1' else time.sleep(60)"
    assert launch(3, [sys.executable, "-c", code]) == 3


def test_refuses_no_processes() -> None:
    with pytest.raises(ValueError, match="expected num_processes to be"):
        launch(0, ["true"])
