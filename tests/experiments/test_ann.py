"""Studies of ANN Softmax, on a few generated identities."""

import itertools
import json

import matplotlib.image
import pytest

import candax as cx
from candax.diagnostics.head_profile import PARTS, profile
from candax.experiments import ann_methods
from candax.experiments.ann_dataset import ANNDataset, ann_dataset
from candax.experiments.ann_profile import ANNProfile, ann_profile
from candax.experiments.ann_recall import TITLES, VALUES, ANNRecall, ann_recall
from candax.experiments.ann_scale import ANNScale, ann_scale
from candax.experiments.ann_tables import ANNTables, ann_tables
from candax.recipes.faces import Faces, make_problem
from tests.training import problems


def written(path, name):
    assert matplotlib.image.imread(path / f"{name}.png").shape[0] > 200
    return json.loads((path / "results.json").read_text())["rows"]


def test_tables_show_what_training_is_good_for(tmp_path):
    untrained, full, ann = ann_tables(ANNTables(quick=True, out=tmp_path))
    assert [(row["loss"], row["method"]) for row in (untrained, full, ann)] == [
        ("-", "untrained"),
        ("softmax", "full_softmax"),
        ("softmax", "ann_softmax"),
    ]
    assert full["verification"] > untrained["verification"] + 0.03
    assert full["rank_1"] > 2 * untrained["rank_1"]
    assert full["top_1"] > 0.5
    assert ann["top_1"] > 0.8 * full["top_1"]
    assert len(written(tmp_path, "ann_tables")) == 3


@pytest.mark.slow
def test_tables_have_a_row_for_every_loss_and_method_once(tmp_path):
    everything = {"methods": ann_methods.METHODS, "losses": tuple(ann_methods.LOSSES)}
    rows = ann_tables(ANNTables(**{**ANNTables.QUICK, **everything}, num_projected=4, out=tmp_path))
    methods = [f"arcface {method}" for method in ann_methods.METHODS]
    others = [f"{loss} {m}" for loss in ("softmax", "cosface", "d_softmax") for m in ("full_softmax", "ann_softmax")]
    variants = ["arcface random_projection", "d_softmax d_softmax_b", "d_softmax d_softmax_k"]
    found = [f"{row['loss']} {row['method']}" for row in rows[1:]]
    assert sorted(found) == sorted([*methods, *others, *variants])
    assert found[0] == "softmax full_softmax"


def test_recall_is_higher_where_more_is_seen(tmp_path):
    few, everything = ann_recall(ANNRecall(quick=True, out=tmp_path))
    assert few["k"] == everything["k"] == 30
    # Of 60 classes one sees 7, the other keeps 30 by their codes.
    assert 0 < few["recall"] < 0.25 < everything["recall"] <= 1
    assert [row["value"] for row in written(tmp_path, "ann_recall")] == [0.1, 1.0]


@pytest.mark.slow
def test_every_sweep_changes_what_it_names(tmp_path, monkeypatch):
    sizes = {**ANNRecall.QUICK, "rate": 0.4, "sweeps": tuple(TITLES), "values": ()}
    few = {"method": (2,), "num_groups": (1, 4), "period": (0.1, 1), "num_centers": (2, 4), "hm_num": (0.5,)}
    for sweep, values in (few | {"num_kept": (1.0,)}).items():
        monkeypatch.setitem(VALUES, sweep, values)
    rows = ann_recall(ANNRecall(**sizes, out=tmp_path))
    assert [(row["sweep"], row["method"], row["value"]) for row in rows] == [
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
    assert rows[0]["recall"] is None
    assert rows[1]["recall"] < 0.7


@pytest.mark.slow
def test_scale_trains_all_sizes_and_seeds(tmp_path):
    rows = ann_scale(ANNScale(quick=True, out=tmp_path))
    assert [(row["num_classes"], row["method"], row["steps"], len(row["top_1_by_seed"])) for row in rows] == [
        (6, "partial_fc", 3, 2),
        (60, "partial_fc", 4, 2),
    ]
    assert len(written(tmp_path, "ann_scale")) == 4


def test_a_warm_start_knows_classes_that_it_was_not_trained_on(tmp_path):
    size = {"min_classes": 200, "max_classes": 200, "seeds": 1, "max_steps": 2}
    warm = {"hidden": 32, "learning_rate": 1e-2, "warm_start": 40, "warm_steps": 300}
    start, trained = ann_scale(ANNScale(quick=True, **size, **warm, out=tmp_path))
    assert (start["method"], start["steps"], trained["method"], trained["steps"]) == ("start", 0, "partial_fc", 2)
    # Means of embeddings of an encoder that was not trained are at .61.
    assert start["top_1"] > 0.75
    assert len(written(tmp_path, "ann_scale")) == 2


def test_profile_times_every_part(tmp_path):
    full, ann, *curves = ann_profile(ANNProfile(quick=True, out=tmp_path))
    assert {part for part in PARTS if full[part] == 0} == {"retrieval", "build"}
    assert all(ann[part] > 0 for part in PARTS)
    assert min(full["scratch_mb"], full["state_mb"]) > 0
    assert [row["method"] for row in curves] == ["full_softmax", "ann_softmax"]
    assert len(written(tmp_path, "ann_profile")) == 4


@pytest.mark.parametrize(
    "sampler",
    [
        cx.samplers.uniform(12, num_groups=1),
        # Its update asks how many classes there are.
        pytest.param(cx.samplers.sharded(cx.samplers.uniform(6, num_groups=1), 2), marks=pytest.mark.slow),
    ],
    ids=["uniform", "sharded"],
)
def test_a_step_with_any_sampler_is_timed(sampler):
    model = problems.model(sampler, cx.losses.css, biases=False)
    optimizer = cx.Optimizer(model, problems.ADAM)
    found = profile(model, optimizer, cx.losses.css, problems.Source()[0, 0], repeats=1)
    assert {part for part in PARTS if found.milliseconds[part] == 0} == {"build"}
    assert min(found.ms_per_step, found.state_bytes) > 0


def test_methods_train_on_a_data_set(tmp_path):
    full, ann = ann_dataset(ANNDataset(quick=True, out=tmp_path))
    assert full["p_at_1"] > 0.9
    assert ann["p_at_1"] > 0.8
    assert len(written(tmp_path, "ann_dataset")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ann_methods.METHODS)
def test_every_method_trains(name):
    settings = Faces(quick=True, epochs=0.3).ready()
    problem = make_problem(settings, tests=20, pairs=40, probes=4, distractors=20)
    by = ann_methods.method(name, ann_methods.sizes_of(settings), ann_methods.LOSSES["arcface"])
    assert 0 <= problem.training().by(*by)(None)["verification"] <= 1


@pytest.mark.parametrize("graph_period", [400, 4000])
def test_builds_are_spread_over_the_steps_between_them(graph_period):
    """In the profile as in training."""
    sizes = ann_methods.Sizes(200, 16, 20, 1, period=300, graph_period=graph_period)
    for name in ann_methods.RETRIEVALS:
        schedule = ann_methods.RETRIEVALS[name](sizes).schedule
        built = [step for step in range(1, 8001) if schedule(step)]
        assert {b - a for a, b in itertools.pairwise(built)} == {ann_methods.build_period(name, sizes)}


def test_what_is_wrong_is_said():
    with pytest.raises(ValueError, match="--num-groups that divides --batch-size, got --num-groups 3 and --batch-s"):
        ann_tables(ANNTables(num_groups=3))
    with pytest.raises(ValueError, match="--min-classes <= --max-classes"):
        ann_scale(ANNScale(min_classes=100, max_classes=10))
    with pytest.raises(ValueError, match="--rate above 0"):
        ann_dataset(ANNDataset(rate=2.0))
    with pytest.raises(ValueError, match="a word after --sweeps, got"):
        ann_recall(ANNRecall(sweeps=()))
    with pytest.raises(ValueError, match=r"whole numbers after --values for .*, got --values \(1.5,\)"):
        ann_recall(ANNRecall(sweeps=("num_groups",), values=(1.5,)))
    with pytest.raises(ValueError, match=r"multiple of each of \(1, 2, 4, 8, 16\) groups, got --batch-size 200"):
        ann_recall(ANNRecall(batch_size=200))
    with pytest.raises(ValueError, match="a word after --methods or one after --losses, got"):
        ann_tables(ANNTables(methods=(), losses=()))
    with pytest.raises(ValueError, match="one method or more, got --methods"):
        ann_profile(ANNProfile(methods=()))
    with pytest.raises(ValueError, match="one method or more, or --warm-start, got --methods"):
        ann_scale(ANNScale(methods=()))
    with pytest.raises(ValueError, match="does not look at all of so many classes, got --methods"):
        ann_scale(ANNScale(methods=("full_softmax",), min_classes=10**6, max_classes=10**6))
