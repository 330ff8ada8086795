"""The race: every task takes part, contenders are tuned alike, and the table says when each is nearly there."""

import dataclasses
import json
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest

from candax.experiments import race as module
from candax.experiments.race import Race, race
from candax.experiments.race_tasks import QUALITY, TASKS, settings_of
from candax.experiments.race_tuning import Setting, tune
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
        more_rates=0,
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


def faked(monkeypatch, diverges, quality=None):
    """Trainings that take no time: those that ``diverges`` says so of (sampler, rate, seed) are not finite.

    ``quality`` gives the points of the curve, of (sampler, seed).
    """

    def trained(settings, loaded, contender, of, *, split, share, seed):
        rate = of.rate

        def run(folder):
            if split == "test" and diverges(contender.sampler, rate, seed):
                raise FloatingPointError("loss")
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
            points = [0.4, rate / 4] if quality is None else quality(contender.sampler, seed)
            steps = range(1, len(points) + 1)
            curve = {"step": list(steps), "seconds": [float(step) for step in steps], QUALITY: points}
            return {QUALITY: rate / 4, "curve": curve, "ms_per_step": 2.0, "seconds": 2.0}

        return SimpleNamespace(on_the_way=None, by=lambda *args, **changes: run), (None, None)

    monkeypatch.setattr(module, "_trained", trained)
    monkeypatch.setattr(Race, "load", lambda settings, split: SimpleNamespace(digest="of the data"))


def test_a_contender_that_diverges_falls_back_to_other_rates_and_ends_no_race(tmp_path, monkeypatch, capsys):
    faked(monkeypatch, lambda sampler, rate, seed: rate == 2.0 or sampler == "midx" or (sampler == "uniform" and seed))
    rows = race(
        Race(samplers=("unigram", "uniform", "midx"), rates=(1.0, 1.8, 2.0), more_rates=0, seeds=2, out=tmp_path)
    )
    assert [row["rate"] for row in rows] == [1.8, 1.8, [1.8, "diverged"], "diverged"]
    assert [row["diverged"] for row in rows] == [0, 0, 0.5, 1]
    assert rows[0]["diverged_rates"] == [2.0]
    assert rows[3]["diverged_rates"] == [2.0, 1.8, 1.0]
    assert (rows[1]["of_full"], rows[3].get("best"), rows[3]["share"]) == (1, None, None)
    assert "1.8, diverged" in capsys.readouterr().out
    written = json.loads((tmp_path / "results.json").read_text())["rows"]
    assert [row["rate"] for row in written] == [1.8, 1.8, 1.8, 1.8, 1.8, None, None, None]
    again = race(
        Race(samplers=("unigram", "uniform", "midx"), rates=(1.0, 1.8, 2.0), more_rates=0, seeds=2, out=tmp_path)
    )
    assert again == rows


@pytest.mark.parametrize(
    ("best", "more", "tried", "taken"),
    [
        (4.0, 3, [0.5, 1, 2, 4, 8], 4),
        (0.25, 3, [0.5, 1, 2, 0.25, 0.125], 0.25),
        (1.0, 3, [0.5, 1, 2], 1),
        (9.0, 1, [0.5, 1, 2, 4], 4),
    ],
)
def test_a_best_rate_has_worse_ones_on_both_sides(best, more, tried, taken, tmp_path, monkeypatch):
    def trained(settings, loaded, contender, of, *, split, share, seed):
        rate = of.rate

        def run(folder):
            quality = 1 / (1 + abs(np.log(rate / best)))
            return {QUALITY: quality, "curve": {"step": [1], "seconds": [1.0], QUALITY: [quality]}, "seconds": 1.0}

        return SimpleNamespace(on_the_way=None, by=lambda *args, **changes: run), (None, None)

    faked(monkeypatch, lambda *of: False)
    monkeypatch.setattr(module, "_trained", trained)
    full, _ = race(Race(samplers=("uniform",), rates=(0.5, 1.0, 2.0), more_rates=more, out=tmp_path))
    assert [trial["rate"] for trial in full["trials"]] == tried
    assert full["rate"] == taken


def test_where_all_rates_diverge_lower_ones_are_tried(tmp_path, monkeypatch):
    def trained(settings, loaded, contender, of, *, split, share, seed):
        rate = of.rate

        def run(folder):
            if rate > 0.25:
                raise FloatingPointError("loss")
            return {QUALITY: 0.5, "curve": {"step": [1], "seconds": [1.0], QUALITY: [0.5]}, "seconds": 1.0}

        return SimpleNamespace(on_the_way=None, by=lambda *args, **changes: run), (None, None)

    faked(monkeypatch, lambda *of: False)
    monkeypatch.setattr(module, "_trained", trained)
    (full,) = race(Race(samplers=(), rates=(2.0, 1.0, 0.5), more_rates=2, out=tmp_path))
    assert [trial["rate"] for trial in full["trials"]] == [2, 1, 0.5, 0.25, 0.125]
    assert full["rate"] == 0.125


def test_seconds_of_several_seeds_agree_with_their_best(tmp_path, monkeypatch):
    """The full softmax is best at other steps with each seed, and its mean curve at no step as good."""
    curves = {None: ([0.4, 0.5, 0.44], [0.4, 0.44, 0.52]), "uniform": ([0.44, 0.46, 0.48],) * 2}
    curves["unigram"] = ([0.5, 0.5, 0.5], [0.3, 0.4, 0.55])
    faked(monkeypatch, lambda *of: False, lambda sampler, seed: curves[sampler][seed])
    full, uniform, unigram = race(Race(samplers=("uniform", "unigram"), rates=(1.0,), seeds=2, out=tmp_path))
    assert full["best"] == pytest.approx(0.51)
    assert full["to_nearly"] == pytest.approx((1.9 + 2 + 0.0696 / 0.08) / 2)
    assert (uniform["to_nearly"], uniform["share"]) == (None, None)
    assert uniform["of_full"] < 0.98
    assert unigram["to_nearly"] == pytest.approx((1 + 2 + 0.1096 / 0.15) / 2)
    assert unigram["share"] == pytest.approx(unigram["to_nearly"] / full["to_nearly"])


def test_a_race_whose_full_softmax_diverges_has_a_table(tmp_path, monkeypatch):
    faked(monkeypatch, lambda sampler, rate, seed: sampler is None)
    full, uniform = race(Race(samplers=("uniform",), rates=(1.0,), out=tmp_path))
    assert (full["rate"], uniform["rate"], uniform["best"]) == ("diverged", 1.0, 0.4)
    assert {uniform[name] for name in ("of_full", "to_nearly", "share", "faster")} == {None}
    faked(monkeypatch, lambda sampler, rate, seed: True)
    assert [row["rate"] for row in race(Race(samplers=("uniform",), out=tmp_path / "other"))] == ["diverged"] * 2
    assert matplotlib.image.imread(tmp_path / "other" / "race.png").shape[0] > 200


@pytest.mark.parametrize("task", TASKS)
def test_rows_of_other_data_are_not_kept(task, tmp_path, monkeypatch):
    """Files of the same names and sizes, with other labels: a race goes on with one more sampler."""
    load = Race.load
    faked(monkeypatch, lambda sampler, rate, seed: False)
    monkeypatch.setattr(Race, "load", load)
    found, written = SMALL[task](tmp_path), tmp_path / "out" / "results.json"

    def rows(*samplers):
        race(Race(task=task, dataset=str(found), quick=True, samplers=samplers, rates=(1.0,), out=tmp_path / "out"))
        return json.loads(written.read_text())

    digest = rows("uniform")["data"]
    assert rows("uniform", "unigram")["data"] == digest
    file = found if found.is_file() else found / "train.tsv" if task == "links" else found / "train.txt"
    turned = {"extreme": ("\n0,1 ", "\n2,3 "), "sequences": ("u1 ", "u1 9 "), "links": ("e2\n", "e3\n")}
    file.write_text(file.read_text().replace(*turned.get(task, ("line 3", "line 4")), 1))
    assert rows("uniform")["data"] != digest
    kept = json.loads((tmp_path / "out" / "results-before.json").read_text())
    assert kept["data"] == digest
    assert len(kept["rows"]) == 3


def test_a_race_without_a_rate_is_refused(tmp_path, capsys):
    line = fails(capsys, "experiment", "race", "--rates", "0", "--out", tmp_path)
    assert "--rates" in line


def test_batch_and_candidates_are_those_that_are_soonest_nearly_at_the_best():
    """A step takes as long as it has examples and candidates; few candidates end low, large batches need high rates."""
    tried = []

    def trial(of):
        tried.append(of)
        if of.batch == 4:
            raise FloatingPointError("loss")
        end = 0.5 - 0.1 * (of.candidates < 1) - 0.01 * abs(np.log2(of.rate / of.batch))
        seconds = (1 + of.candidates) * (0.75 if of.batch > 1 else 1)
        return {"seconds": [0.5 * seconds, seconds], QUALITY: [0.5 * end, end]}

    found = tune(trial, (0.5, 1.0, 2.0), 1, (1.0, 2.0, 4.0, 2.0), (1.0, 0.5, 4.0), 0.98)
    assert tried == [
        *(Setting(rate, 1.0, 1.0) for rate in (0.5, 1.0, 2.0)),
        *(Setting(rate, 2.0, 1.0) for rate in (1.0, 2.0, 4.0)),
        *(Setting(rate, 4.0, 1.0) for rate in (1.0, 2.0, 0.5)),
        Setting(2.0, 2.0, 0.5),
        Setting(2.0, 2.0, 4.0),
    ]
    assert found.settings[:3] == [Setting(2.0, 2.0, 1.0), Setting(1.0, 2.0, 1.0), Setting(4.0, 2.0, 1.0)]
    assert sorted(found.settings) == sorted(tried)  # to fall back to
    assert [Setting(*(row[name] for name in Setting._fields)) for row in found.trials] == tried
    assert [row["rate"] for row in found.trials if row["diverged"]] == [1, 2, 0.5]


def test_what_is_quick_and_would_stay_below_is_not_taken():
    """98 % of one's own best, which is a little below that of the full softmax, would not be 98 % of the latter."""

    def trial(of):
        return {"seconds": [of.candidates], QUALITY: [0.985 if of.candidates == 1 else 0.968]}

    assert tune(trial, (1.0,), 3, (1.0,), (1.0, 0.25), 0.98).settings[0] == Setting(1.0)


def test_a_single_setting_needs_no_trial():
    assert tune(lambda of: {}, (2.0,), 3, (1.0,), (0.5,), 0.98) == ([Setting(2.0, 1.0, 0.5)], [])


def test_a_race_that_goes_on_keeps_what_was_tuned(tmp_path, monkeypatch):
    faked(monkeypatch, lambda *of: False)
    settings = Race(samplers=("uniform",), rates=(1.0, 1.5), more_rates=0, out=tmp_path)
    race(settings)
    monkeypatch.setattr(module, "tune", lambda *arguments: pytest.fail("tuned again"))
    (tmp_path / "results.json").unlink()
    assert [row["rate"] for row in race(dataclasses.replace(settings, seeds=2))] == [1.5, 1.5]
    monkeypatch.setattr(module, "tune", lambda *arguments: tune(*arguments)._replace(settings=[Setting(1.0)]))
    assert race(dataclasses.replace(settings, trial=0.5))[0]["rate"] == 1


def test_a_race_of_before_there_were_sizes_is_read(tmp_path, monkeypatch):
    faked(monkeypatch, lambda *of: False)
    settings = Race(samplers=("uniform",), rates=(1.0,), out=tmp_path)
    rows = race(settings)
    written = json.loads((tmp_path / "results.json").read_text())
    for name in ("batches", "candidates"):
        del written["settings"][name]
    (tmp_path / "results.json").write_text(json.dumps(written))
    monkeypatch.setattr(module, "_run", lambda *arguments: pytest.fail("trained again"))
    assert race(settings) == rows


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_a_batch_and_candidates(task):
    for name in (TASKS[task].batch, "num_sampled"):
        assert getattr(settings_of(task, False), name) > 1


def test_other_batches_and_candidates_are_trained_with(tmp_path):
    settings = Race(
        task="links",
        dataset=str(write_ring(tmp_path / "ring")),
        quick=True,
        num_sampled=12,
        rates=(1.0, 2.0),
        batches=(0.5, 1.0),
        candidates=(0.5,),
        more_rates=0,
        out=tmp_path,
    )
    full, uniform = race(settings)
    assert (full["candidates"], uniform["candidates"]) == (None, 6)
    for row in (full, uniform):
        assert {(trial["rate"], trial["batch"]) for trial in row["trials"][:2]} == {(1.0, 0.5), (2.0, 0.5)}
        assert {trial["batch"] for trial in row["trials"][2:]} == {1.0}
        assert row["batch"] in (16, 32)
