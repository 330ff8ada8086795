"""What the README shows runs as it stands there."""

import re
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_the_notebook_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    scope: dict = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert "p_at_1" in capsys.readouterr().out
    assert int(scope["state"].step) == 300


def test_pictures_and_files_that_it_names_exist():
    root = Path(__file__).parents[1]
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", README):
        assert (root / link).exists(), link
    for name in re.findall(r"`((?:candax|tests|benchmarks|docs)/[\w/.]*)`", README):
        assert (root / name).exists(), name
