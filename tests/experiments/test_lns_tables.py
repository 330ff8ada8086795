"""Tables, sweeps and pictures of LNS, on a data set that is learned in seconds."""

import json

import matplotlib.image
import pytest

from candax.experiments import lns_configurations
from candax.experiments.lns_figure5 import Figure5, figure5
from candax.experiments.lns_staleness import KEPT, LNSStaleness, lns_staleness
from candax.experiments.lns_sweeps import Sweeps, sweeps
from candax.experiments.lns_tables import Tables, tables
from tests.commands import write_dataset


def test_every_method_has_its_row_beside_full_softmax(tmp_path):
    rows = tables(Tables(quick=True, out=tmp_path))
    methods = ["full_softmax", "lsh_embedding", "sampled_softmax", "lsh_logit_with_tail"]
    assert [row["method"] for row in rows] == methods
    full = rows[0]
    assert full["p_at_1"] > 0.9
    assert 0 < full["epochs_to_50_percent"] < full["epochs_to_90_percent"] < 20
    assert full["faster"] == pytest.approx(1)
    assert all(row["curve"]["epoch"][-1] == pytest.approx(20) for row in rows)
    written = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["method"] for row in written] == methods
    assert matplotlib.image.imread(tmp_path / "lns_tables.png").shape[0] > 300


@pytest.mark.slow
def test_sweeps_change_one_setting_at_a_time(tmp_path):
    rows = sweeps(Sweeps(quick=True, tables=("sparsity",), out=tmp_path / "a"))
    rows += sweeps(Sweeps(quick=True, tables=("num_hashes",), values=(1, 2), out=tmp_path))
    assert [(row["sweep"], row["method"], row["value"], row["num_sampled"]) for row in rows] == [
        ("sparsity", "lsh_logit", 0.5, 10),
        ("sparsity", "lsh_logit", 1.0, 20),
        ("sparsity", "sampled_softmax", 0.5, 10),
        ("sparsity", "sampled_softmax", 1.0, 20),
        ("num_hashes", "lsh_logit", 1, 8),
        ("num_hashes", "lsh_logit", 2, 8),
    ]
    assert matplotlib.image.imread(tmp_path / "lns_sweeps.png").shape[0] > 300


def test_every_method_can_be_built_with_the_hyperparameters_of_every_data_set():
    for configuration in lns_configurations.CONFIGURATIONS.values():
        for make in lns_configurations.METHODS.values():
            make(configuration, 1000)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="expected --dataset with the folder of yso-en's train and test files"):
        tables(Tables(config="yso-en"))
    with pytest.raises(ValueError, match="--values above 0, got"):
        sweeps(Sweeps(values=(-2.0,)))
    for nothing in ("tables", "methods"):
        with pytest.raises(ValueError, match=r"a word after --tables and one after --methods, got"):
            sweeps(Sweeps(quick=True, **{nothing: ()}))
    for sweep, value in (("num_tables", 1.5), ("num_hashes", 0.5)):
        with pytest.raises(ValueError, match=rf"whole numbers after --values for .*, got --values \({value},\)"):
            sweeps(Sweeps(quick=True, tables=("sparsity", sweep), values=(value,)))


def test_flattened_data_are_trained_on(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    folder = str(write_dataset(tmp_path / "tiny"))
    tiny = lns_configurations.CONFIGURATIONS["toy"]
    monkeypatch.setitem(lns_configurations.CONFIGURATIONS, "python-stdlib", tiny)
    methods = ("sampled_softmax",)
    settings = Figure5(dataset=folder, methods=methods, max_count=6, epochs=2.0, out=tmp_path / "out")
    rows = figure5(settings)
    assert [row["method"] for row in rows] == ["full_softmax", "sampled_softmax"]
    assert "tiny-uniform" in json.loads((tmp_path / "out" / "results.json").read_text())["title"]
    assert matplotlib.image.imread(tmp_path / "out" / "lns_figure5.png").shape[0] > 300


@pytest.mark.slow
def test_recall_is_measured_for_every_way_to_keep_tables(tmp_path):
    rows = lns_staleness(LNSStaleness(quick=True, out=tmp_path))
    assert [(row["after"], row["kept"]) for row in rows] == [(after, kept) for after in (2, 5) for kept in KEPT]
    for row in rows:
        assert row["steps"] == [0, 10, 20]
        assert row["lost"][0] == 0
    assert matplotlib.image.imread(tmp_path / "lns_staleness.png").shape[0] > 300
    for changes, message in (({"num_batches": 1}, "num-batches"), ({"after": (0,)}, "--after")):
        with pytest.raises(ValueError, match=message):
            lns_staleness(LNSStaleness(**changes))
