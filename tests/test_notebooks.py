"""The notebooks run from top to bottom, and hold the outputs and pictures of a whole run."""

from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.manager import KernelManager

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
# What they compute with, and how much is enough to see that every cell runs.
SMALLER = {
    "compose": {
        "num_steps=300": "num_steps=30",
        "num_draws=8": "num_draws=4",
        "[64, 1024]": "[64]",
        "data.test, 64": "data.test, 16",
    },
    "bias_and_variance": {"NUM, DIM, DRAWS = 2000, 16, 2000": "NUM, DIM, DRAWS = 2000, 16, 200"},
    "item_towers": {"range(401)": "range(41)", "step % 100": "step % 20"},
    "ivf_and_groups": {"range(401)": "range(41)", "range(0, 401, 80)": "range(0, 41, 8)"},
    "language_model": {"range(801)": "range(41)", "step % 200": "step % 20"},
    "lsh_tables": {
        "NUM, DIM, TOP = 20_000": "NUM, DIM, TOP = 4_000",
        "(4, 16, 32)": "(4, 16)",
        "[4, 16, 32]": "[4, 16]",
    },
    "many_devices": {"steps=60": "steps=10"},
    "own_sampler": {"range(200)": "range(20)"},
    "word_vectors": {"epochs=1": "epochs=0.03"},
}
# It says how many devices there are, which a process can do once.
ALONE = ("many_devices",)


@pytest.fixture(scope="module")
def kernel():
    """One process for all: starting and importing take longer than most notebooks. Each begins without names."""
    manager = KernelManager(kernel_name="python3")
    yield manager
    if manager.has_kernel:
        manager.shutdown_kernel(now=True)


def pictures(notebook):
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return sum("image/svg+xml" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path, kernel):
    notebook = nbformat.read(path, as_version=4)
    for old, new in SMALLER[path.stem].items():
        cells = [cell for cell in notebook.cells if old in cell.source]
        assert cells, f"{old} is in no cell: name what is to be made smaller"
        for cell in cells:
            cell.source = cell.source.replace(old, new)
    notebook.cells.insert(0, nbformat.v4.new_code_cell("%reset -f"))
    nbclient.NotebookClient(notebook, km=None if path.stem in ALONE else kernel, timeout=600).execute()
    assert pictures(notebook)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_begins_with_what_it_is_for_and_keeps_its_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    assert "After this notebook" in first.source
    assert all(cell.execution_count for cell in code)
    assert pictures(notebook)
    assert path.stat().st_size < 1_000_000
