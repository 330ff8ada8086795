"""Tables, sweeps and pictures of the LNS experiments, on a tiny data set."""

import dataclasses
import json

import matplotlib.image
import pytest

from candax.experiments import lns_configurations, lns_methods, lns_staleness
from candax.experiments.lns_figure5 import Figure5, figure5
from candax.experiments.lns_staleness import LNSStaleness
from candax.experiments.lns_sweeps import Sweeps, sweeps
from candax.experiments.lns_tables import Tables, tables
from tests.commands import write_dataset


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    tiny = dataclasses.replace(
        lns_configurations.CONFIGURATIONS["python-stdlib"], sparsity=0.4, batch_size=16, dim=8, num_tables=4
    )
    monkeypatch.setitem(lns_configurations.CONFIGURATIONS, "python-stdlib", tiny)
    return str(write_dataset(tmp_path / "tiny"))


def test_every_method_has_its_row_beside_full_softmax(dataset, tmp_path):
    methods = ("lsh_embedding", "sampled_softmax", "lsh_logit_with_tail")
    rows = tables(Tables(dataset=dataset, methods=methods, epochs=30, out=tmp_path / "out"))
    assert [row.method for row in rows] == ["full_softmax", *methods]
    full = rows[0]
    assert full.p_at_1 > 0.9
    assert 0 < full.epochs_to_50_percent < full.epochs_to_90_percent < 30
    assert full.time_relative_to_full == 1
    assert all(row.curve[-1][0] == pytest.approx(30) for row in rows)
    written = json.loads((tmp_path / "out" / "results.json").read_text())["rows"]
    assert [row["method"] for row in written] == [row.method for row in rows]
    assert matplotlib.image.imread(tmp_path / "out" / "figure4.png").shape[0] > 300


@pytest.mark.slow
def test_sweeps_change_one_setting_at_a_time(dataset, tmp_path):
    rows = sweeps(
        Sweeps(
            dataset=dataset,
            methods=("lsh_logit",),
            sparsity=(0.1, 0.5),
            static_sparsity=(0.5,),
            num_tables=(2,),
            num_hashes=(3,),
            epochs=2,
            out=tmp_path / "out",
        )
    )
    assert [(row.sweep, row.method, row.value, row.num_sampled) for row in rows] == [
        ("sparsity", "lsh_logit", 0.1, 2),
        ("sparsity", "lsh_logit", 0.5, 10),
        ("sparsity", "sampled_softmax", 0.5, 10),
        ("num_tables", "lsh_logit", 2, 8),
        ("num_hashes", "lsh_logit", 3, 8),
    ]
    assert matplotlib.image.imread(tmp_path / "out" / "sweeps.png").shape[0] > 300


def test_every_method_can_be_built_with_the_hyperparameters_of_every_data_set():
    for configuration in lns_configurations.CONFIGURATIONS.values():
        for make in lns_methods.METHODS.values():
            make(configuration, 1000)


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="expected --dataset with the folder of yso-en's train and test files"):
        tables(Tables(config="yso-en"))
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        sweeps(Sweeps(sparsity=(2.0,)))


def test_flattened_data_are_trained_on(dataset, tmp_path):
    rows = figure5(Figure5(dataset=dataset, max_count=6, methods=("sampled_softmax",), epochs=2, out=tmp_path / "out"))
    assert [row.method for row in rows] == ["full_softmax", "sampled_softmax"]
    about = json.loads((tmp_path / "out" / "results.json").read_text())["data"]
    assert "tiny-uniform" in about
    for name in ("figure4", "frequencies"):
        assert matplotlib.image.imread(tmp_path / "out" / f"{name}.png").shape[0] > 300


@pytest.mark.slow
def test_recall_is_measured_for_every_way_to_keep_tables(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(lns_staleness, "_NEAR", ("vector",))
    settings = LNSStaleness(dataset=dataset, after=(5, 2), steps=20, every=10, top_k=3, num_batches=2)
    found = lns_staleness.lns_staleness(dataclasses.replace(settings, out=tmp_path / "out"))
    assert list(found) == [2, 5]
    for results in found.values():
        assert list(results) == [f"near vector, {kept}" for kept in lns_staleness._KEPT]
        for result in results.values():
            assert result.steps.tolist() == [0, 10, 20]
            assert result.lost.value[0] == 0
    written = json.loads((tmp_path / "out" / "results.json").read_text())["after"]
    assert list(written["2"]) == list(found[2])
    assert matplotlib.image.imread(tmp_path / "out" / "after_5.png").shape[0] > 300
    with pytest.raises(ValueError, match="num-batches"):
        lns_staleness.lns_staleness(dataclasses.replace(settings, num_batches=1))
    with pytest.raises(ValueError, match="--after"):
        lns_staleness.lns_staleness(dataclasses.replace(settings, after=(0,)))
