"""Tables, sweeps and pictures of LNS, on a data set that is learned in seconds."""

import functools
import json

import matplotlib.image
import pytest

from candax import losses
from candax.experiments import lns_configurations
from candax.experiments.ann_dataset import ANNDataset, ann_dataset
from candax.experiments.lns_figure3 import LNSFigure3, lns_figure3
from candax.experiments.lns_figure5 import Figure5, figure5
from candax.experiments.lns_staleness import KEPT, LNSStaleness, lns_staleness
from candax.experiments.lns_sweeps import Sweeps, sweeps
from candax.experiments.lns_tables import Tables, tables
from candax.recipes import common
from candax.recipes.extreme.problem import contest
from tests.commands import write_dataset

STUDIES = {
    Tables: tables,
    Figure5: figure5,
    Sweeps: sweeps,
    LNSStaleness: lns_staleness,
    LNSFigure3: lns_figure3,
    ANNDataset: ann_dataset,
}


def build(settings):
    """The study, without running it."""
    return STUDIES[type(settings)].__wrapped__(settings.ready())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    return write_dataset(tmp_path / "tiny")


def write_examples(path, num_classes, *labels):
    """A part of a data set, in which each example has one feature."""
    lines = [f"{len(labels)} 30 {num_classes}", *(f"{each} {i % 3}:1" for i, each in enumerate(labels))]
    path.write_text("\n".join(lines) + "\n")


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


@pytest.mark.parametrize("study", STUDIES)
def test_a_quick_run_reads_the_data_that_are_given_and_takes_few_steps(study, folder, monkeypatch):
    assert "tiny" in build(study(quick=True, dataset=str(folder), out=folder)).title
    monkeypatch.setattr(lns_configurations, "_QUICK_STEPS", 3)
    quick = study(quick=True, dataset=str(folder)), study(quick=True, dataset=str(folder), epochs=None)
    for settings, steps in ((quick[0], 3), (quick[1], 3), (study(config="toy", epochs=2.0), 8)):
        settings = settings.ready()
        assert settings.training(settings.load()).num_steps == steps


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize(("tests", "message"), [((), "got 64 and 0"), (("", ""), "got none in any of its 2 test ex")])
def test_data_that_nothing_can_be_measured_with_are_refused_before_training(study, folder, tests, message):
    write_examples(folder / "test.txt", 20, *tests)
    with pytest.raises(ValueError, match=rf"in {folder}, {message}"):
        build(study(quick=True, dataset=str(folder)))


def test_sizes_that_do_not_fit_the_data_are_refused_before_training(folder):
    given = {"dataset": str(folder)}
    for settings, message in (
        (Tables(**given), "expected 2 candidates or more for lsh_embedding, got 1, 0.04 of the 20 classes of"),
        (Sweeps(**given), "expected 2 candidates or more for lsh_embedding, got 1, 0.005 of the 20 classes of"),
        (LNSStaleness(**given), "expected 2 candidates or more for lsh_embedding"),
        (LNSStaleness(quick=True, top_k=25, **given), "expected --top-k of at most 20, the number of classes of"),
        (ANNDataset(num_groups=3, **given), "expected --num-groups that divides a batch, which has 64 examples of"),
    ):
        with pytest.raises(ValueError, match=message):
            build(settings)
    # There are fewer examples than a batch of the configuration has.
    settings = Tables(methods=("sampled_softmax",), epochs=4.0, **given).ready()
    assert settings.configuration.batch_size > 64
    assert build(settings).title == "tiny: 20 classes, 1 candidates, 4 steps"


def test_examples_that_have_all_classes_have_no_negatives_to_measure(folder):
    for number in (2, 1):
        write_examples(folder / "test.txt", 20, ",".join(map(str, range(20))), "", *["1"] * number)
        settings = LNSFigure3(quick=True, dataset=str(folder))
        if number == 2:
            assert "mean over 2 test examples" in build(settings).title
        else:
            with pytest.raises(ValueError, match=f"labels, but not all classes, got 1 in {folder}"):
                build(settings)


def test_flattening_may_leave_nothing_to_measure(folder):
    write_examples(folder / "train.txt", 20, *["0"] * 3, "1")
    write_examples(folder / "test.txt", 20, "1")
    with pytest.raises(ValueError, match=rf"expected test examples of the 1 classes that are left of {folder}"):
        build(Figure5(quick=True, dataset=str(folder)))


def test_the_form_of_the_full_softmax_follows_from_sizes_alone(monkeypatch):
    taken = []
    monkeypatch.setattr(common.Training, "by", lambda training, sampler, loss, name: taken.append(loss) or print)
    training = common.Training(print, (), 1, print)
    for num_classes in (1000, 1000, 10**7):
        contest(training, 256, num_classes, {})
    assert taken[:2] == [losses.full_softmax] * 2
    assert isinstance(taken[2], functools.partial)
    assert taken[2].func is losses.full_softmax


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
