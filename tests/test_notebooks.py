"""The notebooks run from top to bottom."""

from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
# What they compute with, and how much is enough to see that every cell runs.
SMALLER = {"num_steps=300": "num_steps=30", "num_draws=8": "num_draws=4"}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path):
    notebook = nbformat.read(path, as_version=4)
    for old, new in SMALLER.items():
        cells = [cell for cell in notebook.cells if old in cell.source]
        assert cells, f"{old} is in no cell: name what is to be made smaller"
        for cell in cells:
            cell.source = cell.source.replace(old, new)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
