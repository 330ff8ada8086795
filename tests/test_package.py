"""What the wheel holds: every file of the package, the stubs and the mark of types, the licence, and nothing else."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_wheel_holds_the_package_and_nothing_else(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {
        path.relative_to(ROOT).as_posix() for end in ("py", "pyi", "typed") for path in ROOT.glob(f"candax/**/*.{end}")
    }
    about = {name for name in names if ".dist-info/" in name}
    assert names - about == package
    assert {name.partition("/")[2] for name in about} >= {"METADATA", "entry_points.txt", "licenses/LICENSE"}


def test_the_version_is_one():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    newest = re.search(r"^## \[([\d.]+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert cited is not None
    assert version == newest[1] == cited[1]
