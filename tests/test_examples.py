"""The examples and the page of the front door run as they stand, and learn."""

import argparse
import ast
import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = (ROOT / "docs" / "front_door.md").read_text(encoding="utf-8")
# A text of some thousand words that every machine has.
TEXT = (argparse.__file__,)
SMALL: dict[str, list[dict[str, Any]]] = {
    "language_model_nnx": [{"texts": TEXT, "steps": 60, "sampled": 64, "dim": 16, "length": 8}],
    "language_model_linen": [
        {"texts": TEXT, "steps": 20, "sampled": 64, "dim": 16, "rows": rows} for rows in (False, True)
    ],
    "language_model_jax": [
        {"texts": TEXT, "steps": 60, "sampled": 64, "dim": 16, "rows": rows} for rows in (False, True)
    ],
    "knowledge_graph": [{"library": str(Path(json.__file__).parent), "steps": 60, "sampled": 32, "dim": 8}],
    "loader_and_fit": [{"texts": TEXT, "steps": 120, "sampled": 64, "dim": 16, "batch_size": 8, "rate": 2e-2}],
    "many_devices": [{"texts": TEXT, "steps": 200, "sampled": 64, "dim": 16, "data": 1}],
    "two_towers": [{"CATEGORIES": 20, "items": 2000, "steps": 40, "sampled": 64, "dim": 8}],
    "own_sampler_and_loss": [{"texts": TEXT, "steps": 100, "sampled": 64, "dim": 16}],
}


def run_main(path: Path, **sizes: Any) -> Any:
    """What ``main`` of a file returns."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    constants = {name: sizes.pop(name) for name in list(sizes) if name.isupper()}
    vars(module).update(constants)
    return module.main(**sizes)


def test_all_are_here():
    assert sorted(SMALL) == [path.stem for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_learns(path, tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path))
    for sizes in SMALL[path.stem]:
        first, *_, last = run_main(path, **sizes)
        # Losses fall; of the two towers it is the share of items found that rises.
        assert (last - first > 0.02) if path.stem == "two_towers" else (first - last > 0.08), (first, last)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_uses_nothing_private(path):
    source = path.read_text(encoding="utf-8")
    assert len([line for line in source.splitlines() if line.strip()]) <= 60
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        private = [name for name in names if name.startswith("_")]
        assert not private, f"{path.name}, line {node.lineno}: {private}"


def test_the_page_runs(monkeypatch):
    """Its blocks, in their order, in one namespace."""
    names: dict[str, Any] = {"__name__": "front_door"}
    monkeypatch.setitem(sys.modules, "front_door", sys)  # where classes look for their module
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)):
        assert len(block.rstrip().splitlines()) <= 15, block
        exec(compile(block, f"block {number} of front_door.md", "exec"), names)
    assert names["losses"][-1] < names["losses"][0] - 1


def test_links_of_the_page_lead_somewhere():
    for link in re.findall(r"\]\(((?!http)[^)#]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
