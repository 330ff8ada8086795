"""The command line, from arguments to files, on a small data set in the repository's text format."""

import importlib.metadata
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pytest

from candax import cli, overview
from candax.recipes import load
from candax.recipes.common import catalog
from candax.recipes.extreme import compare, train as extreme
from candax.recipes.extreme.train import restore
from candax.recipes.predict import export, lines
from tests.commands import fails, run, write_dataset


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    return write_dataset(tmp_path / "tiny")


def trained(out):
    """The row of a run of `candax train`."""
    return next(row for row in json.loads((out / "results.json").read_text()) if "seed" in row)


# The other pairs are those of any sampler with any loss.
@pytest.mark.parametrize("names", [(("log_uniform", "top_k"), ("css",)), pytest.param(None, marks=pytest.mark.slow)])
def test_compare_prints_a_table_and_writes_results_and_a_picture(dataset, tmp_path, capsys, names):
    out = tmp_path / "out"
    small = ("--num-sampled", 8, "--top-k", 4, "--batch-size", 16, "--dim", 8)
    if names is not None:
        small += ("--samplers", *names[0], "--losses", *names[1])
    run("compare", "--dataset", dataset, "--steps", 120, *small, "--out", out)
    rows = json.loads((out / "results.json").read_text())["table"]
    samplers, losses = names or (compare.Compare().samplers, compare.Compare().losses)
    pairs = [(s, loss) for s, loss in itertools.product(samplers, losses) if s != "top_k" or loss == losses[0]]
    untrained, full = rows[:2], rows[2]
    assert [row["method"] for row in untrained] == ["most frequent", "nearest neighbours"]
    assert all(row["ms_per_step"] is None for row in untrained)
    # Labels can be read off features that training examples have too.
    assert untrained[0]["p_at_1"] < 0.2
    assert untrained[1]["p_at_1"] == 1
    assert [row["method"] for row in rows[3:]] == [f"{sampler}, {loss}" for sampler, loss in pairs]
    assert full["speedup"] == 1
    assert full["p_at_1"] > 0.9
    assert all(np.isfinite(row["ms_per_step"]) and row["ms_per_step"] > 0 for row in rows[2:])
    picture = matplotlib.image.imread(out / "compare.png")
    assert picture.shape[0] > 300
    assert picture.shape[1] > 2 * 300
    printed = capsys.readouterr()
    assert "speed-up" in printed.out
    assert "log_uniform" in printed.out
    assert f"files: {out}" in printed.err
    assert "next:  candax train" in printed.err


def test_quick_runs_take_small_sizes(dataset, tmp_path, capsys):
    some = ("--samplers", "log_uniform", "unigram")
    run("compare", "--dataset", dataset, "--quick", "--seeds", 2, *some, "--out", tmp_path / "compare")
    results = json.loads((tmp_path / "compare" / "results.json").read_text())
    # Two rows without training, and the full softmax and two samplers with two seeds each.
    assert len(results["rows"]) == 2 + 3 * 2
    assert len(results["table"]) == 2 + 3
    assert re.search(r"\(\d\.\d{3} to \d\.\d{3}\)", capsys.readouterr().out)
    run("train", "--dataset", dataset, "--quick", "--out", tmp_path / "train")
    run("diagnose", tmp_path / "train", "--quick", "--losses", "css", "--out", tmp_path / "diagnose")
    assert trained(tmp_path / "train")["step"] == 20


def test_train_goes_on_and_evaluate_agrees(dataset, tmp_path, capsys, monkeypatch):
    out = tmp_path / "run"
    monkeypatch.chdir(tmp_path)
    # With the linear encoder the number of steps is part of the run.
    small = ("--encoder", "relu", "--dropout", 0.3, "--batch-size", 16, "--dim", 8, "--out", out)
    common = ("train", "--dataset", dataset, "--num-sampled", 8, *small)
    run(*common, "--steps", 10, "--checkpoint-every", 4)
    # The data are the same by whatever path they are found.
    run("train", "--dataset", dataset.name, *common[3:], "--steps", 15)
    run("train", "--dataset", f"{dataset}/", *common[3:], "--steps", 20)
    row = trained(out)
    assert row["step"] == 20
    run(*common[:-1], tmp_path / "whole", "--steps", 20)
    vectors = [np.asarray(restore(folder).model.head.vectors[...]) for folder in (out, tmp_path / "whole")]
    np.testing.assert_array_equal(*vectors)
    run("evaluate", out)
    evaluation = json.loads((out / "evaluation.json").read_text())
    assert evaluation["p_at_5"] == row["p@5"]
    assert "p_at_5" in capsys.readouterr().out
    before = (out / "study.json").read_bytes()
    monkeypatch.setattr(extreme, "most_frequent", lambda dataset: pytest.fail("baselines come first"))
    assert "num_sampled was 8 and is 9" in fails(capsys, *common[:3], "--num-sampled", 9, *common[5:], "--steps", 30)
    assert (out / "study.json").read_bytes() == before
    # A model that was removed is written again; figures are those of the model that is there.
    (out / "model.safetensors").unlink()
    monkeypatch.undo()
    for steps in (20, 15):
        run(*common, "--steps", steps)
        assert load(out).predict(np.eye(30)[:1]).shape == (1, 20)
        assert trained(out)["step"] == 20


def test_names_that_come_later_reach_the_model(dataset, tmp_path):
    command = ("train", "--dataset", dataset, "--batch-size", 16, "--dim", 4, "--steps", 2, "--out", tmp_path / "run")
    run(*command)
    assert load(tmp_path / "run").classes_.tolist() == list(range(20))
    names = [f"name {i}" for i in range(20)]
    (dataset / "labels.txt").write_text("\n".join(names))
    run(*command)
    assert load(tmp_path / "run").classes_.tolist() == names


def test_a_run_that_was_killed_before_its_first_checkpoint_begins_anew(dataset, tmp_path):
    (tmp_path / "killed" / "checkpoints").mkdir(parents=True)
    small = ("--num-sampled", 8, "--batch-size", 16, "--dim", 8, "--steps", 4)
    vectors = []
    for name in ("killed", "whole"):
        run("train", "--dataset", dataset, *small, "--out", tmp_path / name)
        vectors.append(np.asarray(restore(tmp_path / name).model.head.vectors[...]))
    np.testing.assert_array_equal(*vectors)


@pytest.mark.usefixtures("heeds_ctrl_c")
def test_a_command_that_is_interrupted_says_how_to_go_on_and_ends_with_130(dataset, tmp_path):
    small = ("--num-sampled", 8, "--batch-size", 16, "--dim", 8, "--encoder", "relu", "--checkpoint-every", 4)
    command = ("train", "--dataset", dataset, "--steps", 1_000_000, *small, "--out", tmp_path / "run")
    metrics = tmp_path / "run" / "metrics.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "candax.cli", *map(str, command)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    while process.poll() is None and not (metrics.exists() and metrics.stat().st_size):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped by SIGINT after step" in errors.decode()


@pytest.mark.usefixtures("heeds_ctrl_c")
@pytest.mark.parametrize("place", [(export, "export_command"), (cli, "_parse")], ids=["at work", "while it loads"])
@pytest.mark.parametrize(("asked", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "stopped by SIGTERM")])
def test_a_command_that_trains_nothing_is_interrupted_in_words(asked, said, place, monkeypatch, capsys):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(*place, lambda given: signal.raise_signal(signal.Signals[asked]))
    with pytest.raises(SystemExit) as ended:
        run("export", "some/run")
    assert (ended.value.code, capsys.readouterr().err) == (130, f"candax: {said}\n")
    assert signal.getsignal(signal.SIGTERM) == before


def test_without_a_standard_output_commands_do_what_they_can(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdout", None)  # as a shell's >&- makes it
    run("--version")
    with pytest.raises(SystemExit) as ended:
        run("export", "--help")
    assert ended.value.code == 0
    assert "nowhere" in fails(capsys, "export", "nowhere")
    with pytest.raises(ValueError, match="which is closed: give --out a file"), lines.writing(None):
        pytest.fail("nothing can be written")


def test_without_a_standard_error_nothing_of_it_stands_in_the_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)  # as a shell's 2>&- makes it
    with pytest.raises(SystemExit) as ended:
        run("export", "no\udcffwhere")  # whose error names what no encoding has
    assert (ended.value.code, capsys.readouterr().out) == (2, "")


def test_export_writes_the_classes_of_a_run(dataset, tmp_path, capsys):
    run(
        "train",
        "--dataset",
        dataset,
        "--batch-size",
        16,
        "--dim",
        8,
        "--num-sampled",
        8,
        "--steps",
        2,
        "--out",
        tmp_path,
    )
    run("export", tmp_path, "--out", tmp_path / "out")
    assert np.load(tmp_path / "out" / "head.class_vectors.npy").shape == (20, 8)
    assert (tmp_path / "out" / "head.safetensors").exists()
    assert f"files: {tmp_path / 'out'}" in capsys.readouterr().err
    assert "with best/ in it" in fails(capsys, "export", tmp_path, "--best")
    assert "expected a folder that fit has written" in fails(capsys, "export", tmp_path / "nothing")
    weights = np.load(tmp_path / "out" / "head.class_vectors.npy")
    np.testing.assert_array_equal(weights, load(tmp_path).fitted_.model.head.vectors[...])
    assert len(json.loads((tmp_path / "out" / "head.class_names.json").read_text())) == 20


OTHERS = [(sampler, "css") for sampler in catalog.SAMPLERS if sampler not in compare.Compare().samplers]
OTHERS += [("uniform", loss) for loss in catalog.LOSSES if loss not in compare.Compare().losses]


@pytest.mark.parametrize(
    ("sampler", "loss"),
    [pair if {"lsh_label", "nce"} & set(pair) else pytest.param(*pair, marks=pytest.mark.slow) for pair in OTHERS],
)
def test_every_other_name_trains(dataset, tmp_path, sampler, loss):
    small = ("--num-sampled", 8, "--batch-size", 16, "--dim", 4, "--steps", 3)
    run("train", "--dataset", dataset, "--sampler", sampler, "--loss", loss, *small, "--out", tmp_path / "run")
    assert trained(tmp_path / "run")["step"] == 3


def test_train_with_the_full_softmax(dataset, tmp_path):
    run("train", "--dataset", dataset, "--sampler", "None", "--batch-size", 16, "--steps", 3, "--out", tmp_path / "run")
    assert trained(tmp_path / "run")["step"] == 3


def test_wrong_arguments_end_in_one_line(dataset, tmp_path, capsys):
    here = ("--out", tmp_path / "out")
    assert "no data set 'nowhere'" in fails(capsys, "compare", "--dataset", "nowhere", *here)
    assert "--num-sampled of 1 or more, got 0" in fails(capsys, "compare", "--num-sampled", 0, *here)
    assert "--steps of 1 or more, got -1" in fails(capsys, "train", "--steps", -1, *here)
    few = "expected 65 training examples or more (a batch), and test examples"
    assert few in fails(capsys, "train", "--dataset", dataset, "--batch-size", 65, *here)
    (tmp_path / "file").write_text("")
    assert "a folder, got the file" in fails(capsys, "train", "--dataset", dataset, "--out", tmp_path / "file")
    (dataset / "test.txt").write_text("0 30 20\n")
    few = "expected 10 training examples or more, and test examples"
    assert few in fails(capsys, "compare", "--dataset", dataset, "--batch-size", 8, *here)
    unlabelled = "64 30 20\n" + " 3:1\n" * 64
    (dataset / "test.txt").write_text(unlabelled)
    small = ("train", "--dataset", dataset, "--batch-size", 8, *here)
    assert "none in any of its 64 test examples" in fails(capsys, *small)
    (dataset / "train.txt").write_text(unlabelled)
    assert "none in any of its 64 training examples" in fails(capsys, *small)
    assert "a dropout below 1, got --dropout 1.0" in fails(capsys, *small, "--dropout", "1.0")
    assert "a seed below 2^32, got --seed 4294967296" in fails(capsys, *small, "--seed", 2**32)
    for option in ("--memory-gb", "--seconds"):
        assert f"expected {option} above 0, got inf" in fails(capsys, "advise", dataset / "train.txt", option, "inf")
    (tmp_path / "config.json").write_text('{"sampler": "foo"}')
    assert "config.json: expected the settings of a run as JSON, got 'foo'" in fails(capsys, "evaluate", tmp_path)
    (tmp_path / "model.safetensors").touch()
    assert f"remove {tmp_path / 'model.safetensors'}, and train again" in fails(capsys, "evaluate", tmp_path)
    (tmp_path / "config.json").unlink()
    assert "holds no config.json" in fails(capsys, "evaluate", tmp_path)
    (dataset / "train.txt").write_text("1 30 20\n25 3:1\n")
    assert "train.txt" in fails(capsys, "train", "--dataset", dataset, *here)


def test_folders_that_cannot_be_written_end_in_one_line(dataset, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for command in ("compare", "train"):
        line = fails(capsys, command, "--dataset", dataset, "--out", tmp_path / "file" / "below")
        assert str(tmp_path / "file") in line


def test_unknown_names_are_refused_with_the_choices(capsys):
    assert "'log_uniform'" in fails(capsys, "compare", "--samplers", "psychic")
    assert "Unrecognized options: --stepz, 3" in fails(capsys, "compare", "--stepz", 3)
    assert "'abc'" in fails(capsys, "train", "--steps", "abc")
    with pytest.raises(SystemExit) as exit_:
        run("--help")
    assert exit_.value.code == 0
    assert "compare" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [80, 40])
def test_alone_it_shows_every_command_on_one_screen(capsys, monkeypatch, columns):
    """Bare `candax` is a question and no fault: what there is goes to standard output, exit status 0."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    run()
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    for command in (*cli.COMMANDS, "experiment"):
        assert f"candax {command}" in printed
    if columns == 80:
        assert len(printed.splitlines()) <= 24
        assert max(map(len, printed.splitlines())) <= 80
    run("experiment")
    printed = " ".join(capsys.readouterr().out.split())
    assert all(name in printed for name in cli.EXPERIMENTS)
    assert "expected one of" in fails(capsys, "comparee")


@pytest.mark.parametrize("no_color", ["", "1"])
def test_help_has_colours_on_a_terminal_unless_no_color_is_set(capsys, monkeypatch, no_color):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit) as end:
        run("compare", "--help")
    assert end.value.code in (0, None)
    printed = capsys.readouterr().out
    assert "--num-sampled" in printed
    assert ("\x1b" in printed) == (not no_color)


def test_the_version_is_that_of_the_package(capsys):
    run("--version")
    assert capsys.readouterr().out == f"candax {importlib.metadata.version('candax')}\n"


def test_completion_knows_commands_and_their_options(capsys):
    with pytest.raises(SystemExit) as exit_:
        run("--tyro-print-completion", "bash")
    assert exit_.value.code in (0, None)
    script = capsys.readouterr().out
    assert all(name in script for name in (*cli.COMMANDS, "css-figure1", "--num-sampled", "--dataset"))


def test_names_on_the_command_line_are_those_of_the_catalog():
    assert set(catalog.SAMPLERS) == set(catalog.SamplerName.__args__)
    assert set(catalog.LOSSES) == set(catalog.LossName.__args__)
    assert set(compare.Compare().samplers) <= set(catalog.SAMPLERS)
    assert set(compare.Compare().losses) <= set(catalog.LOSSES)
    compare.Compare().ready()


def test_experiments_run_through_the_command_line(tmp_path, capsys):
    run("experiment", "css-figure1", "--num-problems", 200, "--num-classes", 100, "--out", tmp_path / "out")
    assert (tmp_path / "out" / "css_figure1.png").exists()
    assert "files: " in capsys.readouterr().err
    assert "--num-problems of 200" in fails(capsys, "experiment", "css-figure1", "--num-problems", 3)


@pytest.mark.parametrize("args", [[], ["compare", "--help"]])
def test_who_reads_a_part_of_what_is_printed_sees_no_error(args):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run([sys.executable, "-m", "candax", *args], stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert done.returncode in (1, 141)  # rich ends with 1 itself
    assert not done.stderr


def test_the_next_command_takes_one_of_several_models(tmp_path, capsys):
    for number, name in enumerate(("complex-1-abc", "complex-0-abc")):
        file = tmp_path / "models" / name / "model.safetensors"
        file.parent.mkdir(parents=True)
        file.touch()
        overview.show_next("links", SimpleNamespace(out=tmp_path))
        of = file.parent if number else tmp_path
        assert f"next:  candax predict {of} INPUT\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("sequences", "--dim", "x"), "expected a whole number for --dim, got 'x'."),
        (("train", "--epochs", "x"), "expected a number for --epochs, got 'x'."),
        (("train", "--steps", "1.5"), "expected a whole number or None for --steps, got '1.5'."),
    ],
)
def test_words_in_place_of_numbers_are_named_without_types(args, expected, capsys):
    assert expected in fails(capsys, *args)


def test_errors_of_the_system_are_sentences(tmp_path, capsys):
    assert f"there is no file or folder {tmp_path / 'none'}." in fails(capsys, "neighbors", tmp_path / "none", "tea")
    assert f"expected a file, got the folder {tmp_path}." in fails(capsys, "sequences", "--dataset", tmp_path)
