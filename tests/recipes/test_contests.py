"""Retrieval from the command line, on files made here."""

import json

import matplotlib.image
import numpy as np
import pytest

from candax.recipes.common import contest
from candax.recipes.retrieval.command import Retrieval
from tests.commands import fails, run

METHODS = ("full_softmax", "in_batch+uniform")
SMALL = ("--methods", *METHODS, "--num-sampled", 8, "--batch-size", 16, "--dim", 16, "--learning-rate", 0.03)


@pytest.fixture
def walks(tmp_path):
    """Users walk around a ring of 30 items, always on to the next."""
    starts = np.random.default_rng(0).integers(0, 30, 60)
    lines = [f"u{user}\ti{(start + step) % 30}\n" for user, start in enumerate(starts) for step in range(5)]
    (tmp_path / "walks.tsv").write_text("".join(lines))
    return tmp_path / "walks.tsv"


def results(out, picture):
    found = json.loads((out / "results.json").read_text())
    assert [row["method"] for row in found["rows"]] == list(METHODS)
    assert found["table"][0]["speedup"] == 1
    assert all(row["ms_per_step"] > 0 and row["curve"] for row in found["rows"])
    assert matplotlib.image.imread(out / picture).shape[0] > 300
    return found["rows"]


def test_retrieval_learns_what_comes_next(walks, tmp_path, capsys):
    run("experiment", "retrieval", "--dataset", walks, "--epochs", 20, *SMALL, "--out", tmp_path / "out")
    rows = results(tmp_path / "out", "retrieval.png")
    assert all(row["recall_at_10"] > 0.95 and row["ndcg_at_10"] > 0.6 for row in rows)
    assert all(row["indexed_recall_at_10"] > 0.9 for row in rows)
    printed = capsys.readouterr().out
    assert "next of 30 items, 180 training and 60 test examples" in " ".join(printed.split())
    assert "nDCG@10" in printed
    assert "in_batch+uniform" in printed
    assert "IVF-BQ" in printed


def test_a_quick_one_runs_with_all_methods(walks, tmp_path):
    run("experiment", "retrieval", "--dataset", walks, "--quick", "--out", tmp_path / "out")
    assert (tmp_path / "out" / "retrieval.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("method", contest.METHODS)
def test_every_method_trains(walks, tmp_path, method):
    small = ("--methods", method, *SMALL[3:], "--epochs", 1, "--out", tmp_path / "out")
    run("experiment", "retrieval", "--dataset", walks, *small)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["table"][0]["speedup"] is None


def test_wrong_data_and_settings_end_in_one_line(walks, tmp_path, capsys):
    here = ("--out", tmp_path / "out")
    walks.write_text("only one column\n")
    assert "walks.tsv:1: expected 2 or 3 columns" in fails(capsys, "experiment", "retrieval", "--dataset", walks, *here)
    assert "nowhere" in fails(capsys, "experiment", "retrieval", "--dataset", tmp_path / "nowhere", *here)
    assert "--dim of 1 or more, got 0" in fails(capsys, "experiment", "retrieval", "--dim", 0, *here)
    assert "--epochs above 0" in fails(capsys, "experiment", "retrieval", "--epochs", 0, *here)
    assert "--split last for python-stdlib" in fails(capsys, "experiment", "retrieval", "--split", "time", *here)


def test_names_on_the_command_line_are_those_of_the_methods():
    assert {"full_softmax", *contest.METHODS} == set(contest.MethodName.__args__)
    Retrieval().ready()
