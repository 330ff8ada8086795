"""Experiments of ANN Softmax, on a few generated identities."""

import json

import matplotlib.image
import pytest

from candax.experiments import ann_dataset, ann_methods, ann_setup, lns_configurations
from candax.experiments.ann_profile import ANNProfile, ann_profile
from candax.experiments.ann_recall import ANNRecall, ann_recall
from candax.experiments.ann_scale import ANNScale, ann_scale
from candax.experiments.ann_tables import ANNTables, ann_tables
from candax.experiments.head_profile import PARTS
from tests.commands import write_dataset

SMALL = {"num_classes": 60, "samples_per_class": 8, "nuisance": 0.3, "batch_size": 16, "hidden": 16, "dim": 8}


def written(path, name):
    assert matplotlib.image.imread(path / f"{name}.png").shape[0] > 200
    return json.loads((path / "results.json").read_text())


def tables_settings(tmp_path, **changes):
    return ANNTables(
        **SMALL, rate=0.4, num_groups=2, epochs=12, learning_rate=0.02, distractors=300, out=tmp_path, **changes
    )


@pytest.mark.slow
def test_tables_show_what_training_is_good_for(tmp_path):
    untrained, full, ann = ann_tables(tables_settings(tmp_path, methods=(), losses=("softmax",)))
    assert [(row.loss, row.method) for row in (untrained, full, ann)] == [
        ("-", "untrained"),
        ("softmax", "full_softmax"),
        ("softmax", "ann_softmax"),
    ]
    assert full.verification > untrained.verification + 0.03
    assert full.rank_1 > 2 * untrained.rank_1
    assert full.top_1 > 0.5
    assert ann.top_1 > 0.8 * full.top_1
    assert len(written(tmp_path, "tables")["rows"]) == 3


@pytest.mark.slow
def test_tables_have_a_row_for_every_loss_and_method_once(tmp_path):
    rows = ann_tables(tables_settings(tmp_path, num_projected=4))
    methods = [f"arcface {method}" for method in ann_methods.METHODS]
    others = [f"{loss} {m}" for loss in ("softmax", "cosface", "d_softmax") for m in ("full_softmax", "ann_softmax")]
    variants = ["arcface random_projection", "d_softmax d_softmax_b", "d_softmax d_softmax_k"]
    found = [f"{row.loss} {row.method}" for row in rows[1:]]
    assert sorted(found) == sorted([*methods, *others, *variants])
    assert found[0] == "softmax full_softmax"


@pytest.mark.slow
def test_recall_is_higher_where_more_is_seen(tmp_path):
    settings = ANNRecall(**SMALL, rate=1.0, epochs=1, sweeps=("hm_num",), hm_num=(0.1, 1.0), out=tmp_path)
    few, everything = ann_recall(settings)
    assert few.k == everything.k == 30
    # Of 60 classes one sees 7, the other keeps 30 by their codes.
    assert 0 < few.recall < 0.25 < everything.recall <= 1
    assert [row["value"] for row in written(tmp_path, "recall")["rows"]] == [0.1, 1.0]


@pytest.mark.slow
def test_every_sweep_changes_what_it_names(tmp_path):
    settings = ANNRecall(
        **SMALL,
        epochs=1,
        num_tables=(2,),
        groups=(1, 4),
        periods=(0.1, 1),
        centers=(2, 4),
        hm_num=(0.5,),
        num_kept=(1.0,),
        out=tmp_path,
    )
    rows = ann_recall(settings)
    assert [(row.sweep, row.method, row.value) for row in rows] == [
        ("method", "full_softmax", None),
        ("method", "partial_fc", None),
        ("method", "ann_softmax", None),
        ("method", "hf_softmax", None),
        ("method", "lsh_softmax", 2),
        ("num_groups", "ann_softmax", 1),
        ("num_groups", "ann_softmax", 4),
        ("period", "ann_softmax", 3),
        ("period", "ann_softmax", 30),
        ("num_centers", "ann_softmax", 2),
        ("num_centers", "ann_softmax", 4),
        ("hm_num", "ann_softmax", 0.5),
        ("num_kept", "ann_softmax", 1.0),
    ]
    assert rows[0].recall is None
    assert rows[1].recall < 0.5


@pytest.mark.slow
def test_scale_trains_all_sizes_and_seeds(tmp_path):
    settings = ANNScale(
        **{**SMALL, "num_classes": 1},
        methods=("partial_fc",),
        min_classes=6,
        max_classes=60,
        seeds=2,
        min_steps=3,
        max_steps=4,
        out=tmp_path,
    )
    rows = ann_scale(settings)
    assert [(row.num_classes, row.method, row.steps, len(row.top_1)) for row in rows] == [
        (6, "partial_fc", 4, 2),
        (60, "partial_fc", 4, 2),
    ]
    assert len(written(tmp_path, "scale")["rows"]) == 2


def test_a_warm_start_knows_classes_that_it_was_not_trained_on(tmp_path):
    settings = ANNScale(
        **{**SMALL, "num_classes": 1, "hidden": 32},
        methods=("partial_fc",),
        min_classes=200,
        max_classes=200,
        seeds=1,
        max_steps=2,
        warm_start=40,
        warm_steps=300,
        out=tmp_path,
    )
    start, trained = ann_scale(settings)
    assert (start.method, start.steps, trained.method, trained.steps) == ("start", 0, "partial_fc", 2)
    # Means of embeddings of an encoder that was not trained are at .61.
    assert start.top_1[0] > 0.75
    assert len(written(tmp_path, "scale")["rows"]) == 2


@pytest.mark.slow
def test_profile_times_every_part(tmp_path):
    settings = ANNProfile(
        **SMALL,
        methods=("full_softmax", "ann_softmax"),
        profile_classes=200,
        repeats=1,
        epochs=0.5,
        out=tmp_path,
    )
    (full, ann), curves = ann_profile(settings)
    none = {part for part in PARTS if full.milliseconds[part] == 0}
    assert none == {"retrieval", "build"}
    assert all(ann.milliseconds[part] > 0 for part in PARTS)
    assert min(full.scratch_bytes, full.state_bytes) > 0
    assert [curve.method for curve in curves] == ["full_softmax", "ann_softmax"]
    assert len(written(tmp_path, "profile")["profiles"]) == 2


@pytest.mark.slow
def test_methods_train_on_a_data_set_of_files(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    tiny = lns_configurations.Configuration("simhash", 4, 4, 0.4, 16, 0.05, 30, dim=8)
    monkeypatch.setitem(lns_configurations.CONFIGURATIONS, "python-stdlib", tiny)
    folder = str(write_dataset(tmp_path / "tiny"))
    settings = ann_dataset.ANNDataset(
        dataset=folder, methods=("ann_softmax",), rate=0.8, num_groups=1, out=tmp_path / "out"
    )
    full, ann = ann_dataset.ann_dataset(settings)
    assert full.final["p_at_1"] > 0.9
    assert ann.final["p_at_1"] > 0.8
    assert len(written(tmp_path / "out", "dataset")["runs"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ann_methods.METHODS)
def test_every_method_trains(name):
    settings = ann_setup.Settings(**SMALL, epochs=0.3, rate=0.4)
    problem = ann_setup.make_problem(settings, tests=20, pairs=40, probes=4, distractors=20)
    sizes = ann_methods.sizes_of(settings, problem.batches.batches_per_epoch)
    trained = ann_setup.train(problem, name, *ann_methods.method(name, sizes, ann_methods.LOSSES["arcface"]))
    assert 0 <= ann_setup.measure(problem, trained.program, trained.state).verification <= 1


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="--num-groups that divides --batch-size, got 3 and 256"):
        ann_tables(ANNTables(num_groups=3))
    with pytest.raises(ValueError, match="--min-classes <= --max-classes"):
        ann_scale(ANNScale(min_classes=100, max_classes=10))
    with pytest.raises(ValueError, match="--rate above 0"):
        ann_dataset.ann_dataset(ann_dataset.ANNDataset(rate=2.0))
