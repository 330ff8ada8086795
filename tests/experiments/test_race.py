"""The race: every task takes part, contenders are tuned alike, and the table says when each is nearly there."""

import json

import matplotlib.image
import pytest

from candax.experiments.race import Race, race
from candax.experiments.race_tasks import QUALITY, TASKS
from tests.commands import fails, write_dataset, write_ring, write_shop, write_words

SMALL = {
    "extreme": lambda folder: write_dataset(folder / "data"),
    "sequences": write_shop,
    "links": lambda folder: write_ring(folder / "ring"),
    "language": write_words,
}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_takes_part(task, tmp_path):
    full, uniform = race(Race(task=task, dataset=str(SMALL[task](tmp_path)), quick=True, out=tmp_path))
    assert (full["method"], uniform["method"]) == ("full_softmax", "uniform, css")
    assert uniform["steps"] == full["steps"]
    assert 0 < full["best"] <= 1
    assert full["of_full"] == 1
    assert matplotlib.image.imread(tmp_path / "race.png").shape[0] > 200


def test_contenders_are_tuned_alike_and_timed_to_nearly_the_full_softmax(tmp_path):
    settings = Race(
        dataset=str(write_dataset(tmp_path / "data")),
        samplers=("uniform",),
        losses=("one_vs_all",),
        all_classes=True,
        num_sampled=16,
        quick=True,
        rates=(0.01, 2.0),
        seeds=2,
        out=tmp_path,
    )
    rows = race(settings)
    assert [row["method"] for row in rows] == ["full_softmax", "all classes, one_vs_all", "uniform, one_vs_all"]
    for row in rows:
        assert [trial["rate"] for trial in row["trials"]] == [0.01, 2.0]
        assert row["rate"] == max(row["trials"], key=lambda trial: trial[QUALITY])["rate"]
        assert row["best"] > 0.5
        assert 0 < row["to_nearly"] <= row["seconds"]
        assert row["share"] == pytest.approx(row["to_nearly"] / rows[0]["to_nearly"])
    written = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["seed"] for row in written] == [0, 1] * 3


def test_those_that_sample_may_have_more_steps(tmp_path):
    dataset = str(write_ring(tmp_path / "ring"))
    settings = Race(task="links", dataset=dataset, quick=True, epochs=1.0, sampled_epochs=3.0, out=tmp_path)
    full, uniform = race(settings)
    assert uniform["method"] == "uniform, css, 3 epochs"
    assert uniform["steps"] == 3 * full["steps"]


def test_a_race_without_a_rate_is_refused(tmp_path, capsys):
    line = fails(capsys, "experiment", "race", "--rates", "0", "--out", tmp_path)
    assert "--rates" in line
