"""The runner of studies: going on after a kill, rows over seeds, table and picture."""

import dataclasses
import functools
import json
import math
import os
import signal
from typing import ClassVar

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import optax
import pytest
from flax import nnx
from matplotlib.figure import Figure
from rich.console import Console

import candax as cx
from candax.recipes import common
from candax.recipes.common import (
    Column,
    Line,
    Method,
    Panel,
    Study,
    Training,
    finished,
    report,
)
from candax.recipes.common.study import kept_in
from candax.recipes.extreme.train import Train
from tests.recipes.test_settings import Mine

COLUMNS = (
    Column("method", "method"),
    Column("score", "score", ".2f", spread=True),
    Column("of full", "of_full", ".1f", common.relative("score", same=("size",))),
    Column("never", "never"),
)
PANELS = (
    Panel(common.curves("step", "value", label=lambda row: f"{row['method']}, {row['size']}"), {"ylabel": "value"}),
    Panel(
        (common.sweep("size", "score"), common.level("first", lambda rows: rows[0]["score"])),
        {"xscale": "log", "ylabel": "score"},
    ),
    Panel(common.dots("score", label="size", by="method"), {"ylabel": ""}),
    Panel(common.bars(("score", "size"), by="method"), {"ylabel": "sum"}),
    Panel(lambda rows: [Line("own", [1, 2], [0.1, 0.2], right=True)], {"ylabel": "other"}),
)


def study(ran, *, stop_before=None, seeds=(0, 1)):
    def method(name, size, seed):
        def run(folder):
            if (name, size, seed) == stop_before:
                raise KeyboardInterrupt
            ran.append((name, size, seed))
            score = size * (2 if name == "full_softmax" else 1) + seed
            return {"score": score, "curve": {"step": [1, 2], "value": [score, score + 1.0]}}

        return Method({"method": name, "size": size, "seed": seed}, run)

    methods = [method(name, size, seed) for size in (1, 10) for seed in seeds for name in ("full_softmax", "other")]
    return Study("a title", methods, COLUMNS, PANELS, claim="a claim")


def test_a_figure_that_one_of_two_rows_lacks_is_compared_with_nothing():
    full, other, diverged = (
        {"method": name, "score": of} for name, of in (("full_softmax", 4.0), ("a", 2.0), ("b", None))
    )
    for compared, found in ((common.relative, 0.5), (common.over, 2.0), (common.below, 2.0)):
        of = compared("score")
        assert [of(row, [full, other, diverged]) for row in (other, diverged)] == [found, None]
        assert of(other, [other, diverged]) is None


LONG = {"step": [1, 2], "value": [2.0, 3.0]}


@pytest.mark.parametrize(
    ("curves", "shown"),
    [
        ([LONG, {"step": [1, 2], "value": [4.0, 5.0]}], [3.0, 4.0]),
        ([LONG, {"step": [1, 4], "value": [4.0, 5.0]}], [2.0, 3.0]),
        ([LONG, {}], [2.0, 3.0]),
        ([{}, LONG], [2.0, 3.0]),
        ([{}, {}], None),
    ],
)
def test_curves_of_other_steps_and_lost_ones_have_no_mean(curves, shown, tmp_path):
    methods = [
        Method({"method": "a", "seed": seed}, lambda folder, curve=curve: {"size": 1, "curve": curve})
        for seed, curve in enumerate(curves)
    ]
    (row,) = common.run(Study("a title", methods, COLUMNS[:1], PANELS[:1]), Mine(out=tmp_path))
    assert row["curve"].get("value") == shown


def test_a_method_that_is_asked_for_twice_is_run_once(tmp_path):
    ran = []
    twice = dataclasses.replace(once := study(ran), methods=once.methods * 2)
    rows = common.run(twice, Mine(out=tmp_path))
    assert len(ran) == len(set(ran)) == 8
    assert [row["score_by_seed"] for row in rows] == [[2, 3], [1, 2], [20, 21], [10, 11]]
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == 8


def test_a_study_that_was_killed_goes_on_and_shows_means_over_seeds(tmp_path):
    ran = []
    settings = Mine(out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        common.run(study(ran, stop_before=("other", 10, 0)), settings)
    assert len(json.loads((tmp_path / "results.json").read_text())["rows"]) == len(ran) == 5
    rows = common.run(study(ran), settings)
    assert len(ran) == len(set(ran)) == 8
    assert [(row["method"], row["size"], row["score"], row["score_by_seed"]) for row in rows] == [
        ("full_softmax", 1, 2.5, [2, 3]),
        ("other", 1, 1.5, [1, 2]),
        ("full_softmax", 10, 20.5, [20, 21]),
        ("other", 10, 10.5, [10, 11]),
    ]
    assert rows[1]["of_full"] == pytest.approx(0.6)
    assert rows[0]["curve"]["value"] == [2.5, 3.5]
    written = json.loads((tmp_path / "results.json").read_text())
    assert len(written["rows"]) == 8
    assert written["table"][3] == {"method": "other", "score": 10.5, "of_full": 10.5 / 20.5, "never": None}
    assert matplotlib.image.imread(tmp_path / "test_settings.png").shape[1] > 1000
    # With other settings it is another study.
    common.run(study(ran), dataclasses.replace(settings, num_classes=20))
    assert len(ran) == 16


def test_rows_of_other_settings_or_data_are_kept_beside(tmp_path, capsys):
    def ask(num_classes, **changes):
        settings = Mine(out=tmp_path, num_classes=num_classes)
        common.run(dataclasses.replace(study([], seeds=(0,)), **changes), settings)
        lines = [line for line in capsys.readouterr().out.splitlines() if "kept in" in line]
        return lines, sorted(path.name for path in tmp_path.glob("*.json"))

    assert ask(20) == ask(20) == ([], ["results.json"])
    before = (tmp_path / "results.json").read_bytes()
    (told,), files = ask(30)
    path = tmp_path / "results.json"
    assert told.startswith(f"{path} had rows of other settings or data, which are kept in results-before.json")
    assert files == ["results-before.json", "results.json"]
    assert (tmp_path / "results-before.json").read_bytes() == before
    (told,), files = ask(30, data="of another file")
    assert told.endswith("kept in results-before-2.json")
    assert len(files) == 3
    assert (tmp_path / "results-before.json").read_bytes() == before
    # The first study finds its rows again.
    (told,), files = ask(20)
    assert told.endswith("kept in results-before-3.json")
    assert path.read_bytes() == before
    assert files == ["results-before-2.json", "results-before-3.json", "results.json"]
    # A study that keeps its own rows elsewhere keeps those.
    readers = {"results": lambda row: [row]}
    assert ask(30, **readers)[0] == []
    assert "study-before.json" in ask(20, **readers)[1]


def test_an_interrupted_method_keeps_its_folder_until_it_is_done(tmp_path):
    seen = []

    def study_of(names, last):
        def run(name, folder):
            seen.append((name, folder.exists()))
            folder.mkdir(parents=True, exist_ok=True)
            if name == last:
                raise KeyboardInterrupt
            return {"score": 1.0, "curve": {"step": list(range(len(seen))), "value": [0.0] * len(seen)}}

        methods = [
            Method({"method": name, "size": 1, "seed": seed}, functools.partial(run, f"{name}{seed}"))
            for name in names
            for seed in (0, 1)
        ]
        return Study("a title", methods, COLUMNS, PANELS)

    with pytest.raises(KeyboardInterrupt):
        common.run(study_of(["first", "second"], "second0"), Mine(out=tmp_path))
    # Others alone in between.
    common.run(study_of(["other"], None), Mine(out=tmp_path))
    # Among other methods, whose curves are of other lengths.
    common.run(study_of(["other", "second", "first"], None), Mine(out=tmp_path))
    first, rest = seen[:3], seen[3:]
    assert first == [("first0", False), ("first1", False), ("second0", False)]
    assert rest == [("other0", False), ("other1", False), ("second0", True), ("second1", False)]
    assert not (tmp_path / "unfinished").exists()
    # The very first one, too; but not with other settings.
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            common.run(study_of(["first"], "first0"), Mine(out=tmp_path / "first"))
    common.run(study_of(["first"], None), Mine(out=tmp_path / "first", num_classes=20))
    assert seen[7:] == [("first0", False), ("first0", True), ("first0", False), ("first1", False)]
    assert [path.name for path in (tmp_path / "first").glob("*.json")] == ["results.json"]


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("checkpoint_every", [2, 500])
def test_a_stopped_study_says_what_is_saved(tmp_path, checkpoint_every):
    """Its rows, and the training that was stopped, also where that is too short for regular checkpoints."""

    def study_of(stops):
        def measure(model):
            if stops:
                signal.raise_signal(signal.SIGINT)
            return {}

        training = problem(4, on_the_way=measure, measured_at=(0.5,), checkpoint_every=checkpoint_every)
        run = training.by(cx.samplers.uniform(8), cx.losses.css)
        ran = [Method({"method": name, "size": 1, "seed": 0}, lambda folder: {"score": 1.0}) for name in "ac"]
        if stops is None:
            return Study("a title", ran[1:], COLUMNS, PANELS)
        return Study("a title", [ran[0], Method({"method": "b", "size": 1, "seed": 0}, run), ran[1]], COLUMNS, PANELS)

    common.run(study_of(None), Mine(out=tmp_path))
    with pytest.raises(cx.training.Interrupted) as stopped:
        common.run(study_of(True), Mine(out=tmp_path))
    assert f"after step 2 and saved in {tmp_path}" in str(stopped.value)
    # All of them: those that come later in the order, too.
    assert {row["method"] for row in json.loads((tmp_path / "results.json").read_text())["rows"]} == {"a", "c"}


@pytest.mark.parametrize("said", ["", "stopped by SIGTERM"])
def test_a_study_that_is_stopped_between_trainings_says_what_is_saved(tmp_path, said):
    def stop(folder):
        raise KeyboardInterrupt(*filter(None, [said]))

    methods = [Method({"method": "a"}, lambda folder: {"score": 1.0}), Method({"method": "b"}, stop)]
    with pytest.raises(cx.training.Interrupted) as stopped:
        common.run(Study("a title", methods, COLUMNS, PANELS), Mine(out=tmp_path))
    saved = f"1 of 2 rows are saved in {tmp_path}; the same command goes on."
    assert str(stopped.value) == f"{said or 'interrupted'}. {saved}"


def test_lines_of_a_second_axis_are_named(tmp_path):
    """In the legend beside those of the first, and at the axis."""
    rows = [{"method": "css", "size": size, "top_1": 0.5, "recall": 0.7} for size in (1, 2)]
    left = common.sweep("size", "top_1", by=lambda row: "top-1")
    right = common.sweep("size", "recall", by=lambda row: "recall (right)", right=True)
    for panels in ([Panel((left, right))], [Panel((left, right))] * 2):  # a legend each, and one for all
        report.draw("a title", panels, rows, "full_softmax", tmp_path / "picture.svg")
        drawn = (tmp_path / "picture.svg").read_text()  # its comments say what is written
        assert [drawn.count(f"<!-- {name} -->") for name in ("top-1", "recall (right)")] == [1, 1]
        assert drawn.count("<!-- recall -->") == len(panels)


def test_dollar_signs_in_names_of_data_are_no_formula(tmp_path):
    rows = [{"method": "css", "size": size, "top_1": 0.5} for size in (1, 2)]
    panel = Panel((common.sweep("size", "top_1", by=lambda row: "top-1"),))
    report.draw(r"in_$\frac$: 3 classes", [panel], rows, "full_softmax", tmp_path / "picture.svg")
    assert r"<!-- in_$\frac$: 3 classes -->" in (tmp_path / "picture.svg").read_text()


@pytest.mark.parametrize(("points", "marker"), [(1, "o"), (2, "None")])
def test_a_curve_of_one_point_is_seen(points, marker):
    axis = Figure().subplots()
    Line("a", list(range(points)), [0.5] * points).draw(axis, {"color": "black"})
    assert [line.get_marker() for line in axis.get_lines()] == [marker]


def test_the_table_shows_what_is_there(tmp_path):
    rows = common.run(study([], seeds=(0,)), Mine(out=tmp_path))
    console = Console(width=100)
    with console.capture() as shown:
        console.print(report.table("a title", COLUMNS, rows))
    assert "other" in shown.get()
    assert "10.00" in shown.get()
    assert "0.5" in shown.get()


def problem(steps, **changes):
    def make(sampler, loss):
        model = nnx.Sequential(cx.Embed(20, 4, rngs=nnx.Rngs(0)))
        model.head = cx.Head(20, 4, sampler=sampler, loss=loss, rngs=nnx.Rngs(1))
        return model, cx.Optimizer(model, optax.adam(0.1))

    batches = [(jnp.arange(8), (jnp.arange(8) + i) % 20) for i in range(steps)]

    def measure(model):
        return {"norm": float(jnp.linalg.norm(model.head.vectors[...]))}

    options = {"on_the_way": measure, "measured_at": (0, 0.5, 1), "progress": False, "checkpoint_every": 2}
    return Training(make, batches, steps, measure, **{**options, **changes})


@pytest.mark.parametrize("checkpoint_every", [2, 500])
def test_a_training_that_was_killed_goes_on_where_it_was(tmp_path, checkpoint_every):
    """A short one too, which leaves no checkpoint where it is not stopped."""
    sampler, loss = cx.samplers.every(cx.samplers.uniform(8), 3), cx.losses.css
    problem(6, checkpoint_every=checkpoint_every).by(sampler, loss)(tmp_path / "unbroken")
    steps = [path.name for path in (tmp_path / "unbroken" / "checkpoints").glob("[0-9]*")]
    assert steps == (["6"] if checkpoint_every == 2 else [])
    whole = problem(6).by(sampler, loss)(None)
    assert whole["curve"]["step"] == [0, 3, 6]
    assert whole["curve"]["norm"][-1] == whole["norm"]
    assert (whole["steps"], whole["seconds"] > 0, whole["ms_per_step"] > 0) == (6, True, True)
    assert problem(1).by(sampler, loss)(None)["ms_per_step"] is None  # its only step compiles
    calls = []

    def killed(model):
        calls.append(model)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return {"norm": float(jnp.linalg.norm(model.head.vectors[...]))}

    with pytest.raises(cx.training.Interrupted):
        problem(6, on_the_way=killed, checkpoint_every=checkpoint_every).by(sampler, loss)(tmp_path)
    assert len(calls) == 2
    # What was a short one then may not be called so when it goes on.
    found = problem(6, checkpoint_every=502 - checkpoint_every).by(sampler, loss)(tmp_path)
    assert found["norm"] == whole["norm"]
    assert found["curve"]["norm"] == whole["curve"]["norm"]
    # The end is a checkpoint, also of a run whose log is lost.
    (tmp_path / "metrics.jsonl").unlink()
    again = problem(6).by(sampler, loss)(tmp_path)
    assert (again["norm"], again["seconds"]) == (found["norm"], pytest.approx(found["seconds"], rel=0.1))


def test_the_model_that_the_results_name_is_found(tmp_path):
    """Also where the times of files were lost in a copy."""
    for name in ("complex-0-1111", "complex-0-ffff"):
        finished.save(tmp_path / "models" / name, "links", {}, {}, names={})
    assert finished.find(tmp_path, "candax links").parent.name == "complex-0-ffff"
    row = {"method": "complex", "models": ["models/complex-0-1111/model.safetensors"]}
    (tmp_path / "study.json").write_text(json.dumps({"rows": [row]}))
    assert finished.find(tmp_path, "candax links").parent.name == "complex-0-1111"


def test_the_first_attempt_that_stays_finite_counts(tmp_path):
    def attempt(diverges):
        def run(folder):
            if diverges:
                raise FloatingPointError
            return {"score": 1}

        return run

    assert common.first_finite({0.5: attempt(True), 0.1: attempt(False)}, "rate")(tmp_path) == {
        "score": 1,
        "rate": 0.1,
        "diverged": [0.5],
    }
    assert common.first_finite({0.5: attempt(True)}, "rate")(None) == {"rate": None, "diverged": [0.5]}


def test_where_a_curve_reaches_a_score():
    curve = {"seconds": [1.0, 3.0, 4.0], "p_at_1": [0.2, 0.4, 0.3]}
    assert common.reaching(curve, "p_at_1", 0.1, "seconds") == 1  # what came before was not measured
    assert common.reaching(curve, "p_at_1", 0.2, "seconds") == 1
    assert common.reaching(curve, "p_at_1", 0.3, "seconds") == pytest.approx(2)
    assert common.reaching(curve, "p_at_1", 0.5, "seconds") is None


def test_a_run_goes_on_with_its_data_under_another_path(tmp_path):
    """The digest of the examples decides, which the batches' own identity has."""
    from candax.recipes.extreme.train import identity_of

    settings = [
        Train(dataset=path, out=tmp_path, encoder="relu")
        for path in ("here/shop", "here/shop/", str(tmp_path / "shop"))
    ]
    first, *others = [identity_of(of, num_steps=1) for of in settings]
    assert all(other == first for other in others)
    changed = dataclasses.replace(settings[0], seed=7)
    assert identity_of(changed, num_steps=1) != first


@dataclasses.dataclass(frozen=True)
class Several(Mine):
    UNLESS_GIVEN: ClassVar = ({"rate": 0.5},)


def kept_study(ran, settings, **changes):
    def run(folder):
        ran.append(settings)
        (settings.out / "models").mkdir(exist_ok=True)
        (settings.out / "models" / "a").touch()
        return {"score": 1.0, "curve": {}, **kept_in(settings.out, settings.out / "models" / "a")}

    methods = [Method({"method": "a", "size": 1}, run)]
    return Study("a [title]", methods, COLUMNS, PANELS[4:], **changes)


def test_rows_are_kept_for_the_same_settings_names_and_models(tmp_path, capsys):
    ran = []

    def ask(settings, **changes):
        common.run(kept_study(ran, settings, **changes), settings)
        return len(ran)

    usual, given = Several(out=tmp_path), Several(out=tmp_path, rate=0.1)
    assert [ask(usual), ask(usual)] == [1, 1]
    assert "a [title]" in capsys.readouterr().out
    # What is given takes the place of what a method has of its own, even if it is the default.
    assert [ask(given), ask(given), ask(usual)] == [2, 2, 3]
    names = {"names": [["tea", "milk"]]}
    assert [ask(usual, **names), ask(usual, **names), ask(usual, names=[["tee", "milk"]])] == [4, 4, 5]
    ask(usual)
    (tmp_path / "models" / "a").unlink()
    assert [ask(usual), ask(usual)] == [7, 7]
    with pytest.raises(ValueError, match=r"a folder of other, got .* which has results of test_common: give another"):
        ask(usual, picture="other.png")


def test_a_folder_is_of_one_study_at_a_time(tmp_path):
    """Else one would remove the unfinished trainings of the other."""
    refused = []

    def run(folder):
        with pytest.raises(ValueError, match=r"expected no other run to write to .* Wait until it has ended") as error:
            common.run(kept_study([], Several(seed=1, out=tmp_path)), Several(seed=1, out=tmp_path))
        refused.append(error)
        return {"score": 1.0, "curve": {"step": [1, 2], "value": [1.0, 2.0]}}

    methods = [Method({"method": "a", "size": 1, "seed": 0}, run)]
    common.run(Study("a title", methods, COLUMNS, PANELS[:1]), Mine(out=tmp_path))
    common.run(nan_study([]), Mine(out=tmp_path))
    assert len(refused) == 1


def test_a_command_whose_data_are_wrong_leaves_no_folder(tmp_path):
    def build(settings):
        raise ValueError("no such data")

    (tmp_path / "old").mkdir()
    for out in ("old", "old/new", "new", "runs/new"):
        with pytest.raises(ValueError, match="no such data"):
            common.command(build)(Mine(out=tmp_path / out))
    assert list(tmp_path.rglob("*")) == [tmp_path / "old"]


def test_results_of_another_study_stay(tmp_path):
    common.run(nan_study([]), Mine(out=tmp_path))
    kept = (tmp_path / "results.json").read_text()
    ours = dataclasses.replace(nan_study([]), picture="other.png", results=lambda row: [row])
    message = "a folder of other, got .* which has results of test_settings: give another"
    with pytest.raises(ValueError, match=message):
        common.run(ours, Mine(out=tmp_path))
    with pytest.raises(ValueError, match=message):
        common.folder_for("other", tmp_path)
    assert (tmp_path / "results.json").read_text() == kept
    assert not (tmp_path / "study.json").exists()


def nan_study(ran):
    def run(folder):
        ran.append(folder)
        return {"score": math.nan, "curve": {"step": [1, 2], "value": [math.nan, 1.0]}}

    return Study("a title", [Method({"method": "a", "size": 1, "seed": 0}, run)], COLUMNS, PANELS[:1])


def test_files_are_json_where_numbers_are_not_finite(tmp_path):
    ran = []
    curves = [common.run(nan_study(ran), Mine(out=tmp_path))[0]["curve"]["value"] for _ in range(2)]
    assert len(ran) == 1
    np.testing.assert_array_equal(*curves)
    written = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert written["rows"][0]["score"] is None


ROW = {"method": "a", "size": 1, "seed": 0}


@pytest.mark.parametrize(
    "text", ["{", "\xff", None, [{"curve": 3}], [{"curve": {"step": 3}}], [{**ROW, "curve": {"step": [1]}}]]
)
def test_rows_that_cannot_be_read_are_named(tmp_path, text):
    common.run(nan_study([]), Mine(out=tmp_path))
    path = tmp_path / "results.json"
    if not isinstance(text, str):
        text = json.dumps({**json.loads(path.read_text()), "rows": text})
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"results.json: expected .* Remove it"):
        common.run(nan_study([]), Mine(out=tmp_path))


@pytest.mark.parametrize("text", ["{", "\xff", "[]"])
def test_what_is_kept_once_is_refused_where_it_cannot_be_read(tmp_path, text):
    path = tmp_path / "tuning.json"
    assert [common.kept_once(path, "a", of, lambda of=of: [of]) for of in (1, 1, 2)] == [[1], [1], [2]]
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=r"tuning.json: expected .* Remove it"):
        common.kept_once(path, "a", 1, list)
