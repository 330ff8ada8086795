"""The page on using what was trained runs as it stands, and so do the interfaces on the pages of recipes."""

import re
from pathlib import Path
from typing import Any

import pytest

from candax import cli

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "predict.md").read_text(encoding="utf-8")
PAGES = ("recipes/extreme", "recipes/sequences", "recipes/links", "language")


def test_its_blocks_run(tmp_path, monkeypatch):
    """In their order, in one namespace, each of ten lines or so."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    pages = [(DOCS / f"{page}.md").read_text(encoding="utf-8") for page in PAGES]
    code = [re.findall(r"```python\n(.*?)```", page, re.DOTALL) for page in (*pages, PAGE)]
    assert [len(of_page) for of_page in code] == [1, 1, 1, 1, 1]
    for (block,) in code:
        assert len(block.rstrip().splitlines()) <= 11, block
        exec(compile(block, "a block", "exec"), names)
    assert names["likeliest"].nnz == 1
    assert names["precision_at_1"].shape == (2,)
    assert names["again"] == [(names["items"], names["scores"])]
    assert not {"bread", "jam"} & {*names["items"]}
    assert names["countries"][0] == "Italy"
    assert names["cities"][0] == "Oslo"
    assert names["score"] == pytest.approx(names["scores_of"][0], rel=1e-4)
    assert names["words"] == ["not"]
    assert 0.2 < names["probabilities"][0] <= 1
    assert len(names["near"]) == 2


def test_its_commands_are_there():
    """With options that the command has."""
    (block,) = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    commands = [line.split("#")[0].split("candax ")[1].split() for line in block.splitlines()]
    found = [cli._parse(command)[1] for command in commands]
    assert {type(settings).__name__ for settings in found} == {"Predict"}
