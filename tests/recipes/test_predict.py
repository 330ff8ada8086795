"""`candax predict` on runs of `candax train`: what it says is what was measured, and bad input ends in one line."""

import io
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import candax as cx
from candax.data.xml_repository import read_examples
from candax.files import write_arrays
from candax.recipes.predict import lines
from tests.commands import fails, piped, run, write_dataset


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and its data, which may go."""
    folder = tmp_path_factory.mktemp("predict")
    data = write_dataset(folder / "data")
    options = "--dim 8 --epochs 10 --batch-size 16 --num-sampled 8 --average 0 --neighbours 0"
    run("train", "--dataset", data, "--out", folder / "run", *options.split())
    return SimpleNamespace(run=folder / "run", test=data / "test.txt", folder=folder)


def answered(path):
    """The rows of a file of tab-separated answers."""
    return [line.split("\t") for line in path.read_text().splitlines()]


def test_precision_of_what_is_predicted_is_that_of_the_evaluation(trained, capsys):
    out = trained.folder / "found.tsv"
    run("predict", trained.run, trained.test, "--k", 5, "--out", out)
    assert "inputs answered: 64" in capsys.readouterr().err
    truth = read_examples(trained.test).labels.toarray()
    rows = answered(out)
    assert len(rows) == 64 * 5
    (measured,) = (row for row in json.loads((trained.run / "results.json").read_text()) if "seed" in row)
    for k in (1, 3, 5):
        hits = [truth[int(example), int(label)] for example, rank, label, _ in rows if int(rank) <= k]
        assert np.mean(hits) == pytest.approx(measured[f"p@{k}"], rel=1e-6)


def test_a_pipe_without_header_and_labels_is_answered_alike(trained, monkeypatch, capsys):
    whole = trained.test.read_text().splitlines()
    piped(monkeypatch, "".join(f" {line.split(' ', 1)[1]}\n" for line in whole[1:]))
    run("predict", trained.run, "-", "--k", 2, "--format", "jsonl")
    by_pipe = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    features = read_examples(trained.test).features
    probabilities, ids = cx.recipes.load(trained.run).top_k(features, 2)
    assert [row["names"] for row in by_pipe] == ids.tolist()
    np.testing.assert_allclose([row["scores"] for row in by_pipe], probabilities, rtol=1e-4)
    assert [row["input"] for row in by_pipe] == list(range(64))


def test_an_index_is_built_once_and_finds_the_same_where_it_sees_all(trained):
    exact, indexed, index = (trained.folder / name for name in ("exact.tsv", "indexed.tsv", "index.safetensors"))
    run("predict", trained.run, trained.test, "--k", 3, "--out", exact)
    for _ in range(2):
        run("predict", trained.run, trained.test, "--k", 3, "--out", indexed, "--index", index)
        assert [row[:3] for row in answered(indexed)] == [row[:3] for row in answered(exact)]
    other = cx.Classes(np.eye(20, 8, dtype=np.float32))
    exactly = cx.samplers.exact_index()
    cx.samplers.save_index(index, exactly, (), cx.Classes(*map(np.asarray, (other.vectors,))))
    with pytest.raises(ValueError, match="an index of the run's classes"):
        cx.recipes.load(trained.run).use_index(index)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected lines to answer, got an empty input"),
        ("\n \n", "expected lines to answer, got an empty input"),
        ("2 31 20\n0 1:1\n0 1:1\n", "in.txt:1: expected 30 features, as the run has them, got a header of 31"),
        ("3 30 20\n0 1:1\n0 1:1\n", "in.txt:3: expected 3 examples, as the header states, got 2"),
        ("1 30 20\n0 1:1\n0 1:1\n", "in.txt:3: expected 1 examples, as the header states; got more"),
        ("0 1:1\n0 30:1\n", "in.txt:2: expected a feature id from 0 to 29"),
        ("ann tea milk\n", "in.txt:1: expected an integer as label id; got 'ann'"),
    ],
)
def test_bad_input_ends_in_one_line_and_writes_nothing(text, message, trained, capsys):
    (trained.folder / "in.txt").write_text(text)
    out = trained.folder / "never.tsv"
    assert message in fails(capsys, "predict", trained.run, trained.folder / "in.txt", "--out", out)
    assert [path.name for path in trained.folder.iterdir() if "never" in path.name] == []


@pytest.mark.parametrize("empty", [1, 2])
def test_empty_lines_at_the_beginning_are_examples_without_features(empty, trained, monkeypatch, capsys):
    piped(monkeypatch, "\n" * empty + " 1:1\n 2:1\n")
    run("predict", trained.run, "-", "--k", 1)
    out, err = capsys.readouterr()
    assert [int(line.split("\t")[0]) for line in out.splitlines()] == list(range(empty + 2))
    assert f"answered by how frequent classes are: {empty}" in err


def test_an_index_is_not_built_for_an_input_that_is_not_there(trained, tmp_path, capsys):
    index = tmp_path / "index.safetensors"
    assert "which does not exist" in fails(capsys, "predict", trained.run, tmp_path / "no.txt", "--index", index)
    assert not index.exists()


def test_runs_that_cannot_be_used_say_why(trained, tmp_path, capsys):
    assert "holds none" in fails(capsys, "predict", tmp_path, "-")
    (tmp_path / "of fit/checkpoints").mkdir(parents=True)
    assert "candax.training.load reads it" in fails(capsys, "predict", tmp_path / "of fit", "-")
    (tmp_path / "config.json").write_text("{}")
    unfinished = fails(capsys, "predict", tmp_path, "-")
    assert "whose training has not ended or whose models were removed: give the same command again" in unfinished
    write_arrays(tmp_path / "model.safetensors", "candax model", {"version": 2}, {"a": np.zeros(1)})
    assert "of a newer candax: update candax" in fails(capsys, "predict", tmp_path, "-")
    whole = (trained.run / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-7])
    assert "to be the model of a finished run of" in fails(capsys, "predict", tmp_path, "-")
    for number in range(2):
        (tmp_path / f"several/models/{number}").mkdir(parents=True)
        (tmp_path / f"several/models/{number}/model.safetensors").write_bytes(whole)
    assert "has 2: give the folder of one" in fails(capsys, "predict", tmp_path / "several", "-")
    # Of one method and seed, the one that was trained last.
    for number, (name, of) in enumerate({"a-0-new": whole, "a-0-old": b"?"}.items()):
        path = tmp_path / f"again/models/{name}/model.safetensors"
        path.parent.mkdir(parents=True)
        path.write_bytes(of)
        os.utime(path, (9 - number, 9 - number))
    run("predict", tmp_path / "again", trained.test)


def test_output_that_cannot_be_written_says_so(trained, tmp_path, capsys):
    assert "which does not exist" in fails(capsys, "predict", trained.run, tmp_path / "nowhere.txt")
    same = fails(capsys, "predict", trained.run, trained.test, "--out", trained.test)
    assert "another file than the input" in same
    assert "got the folder" in fails(capsys, "predict", trained.run, trained.test, "--out", tmp_path)
    assert f"make the folder {tmp_path / 'missing'}" in fails(
        capsys, "predict", trained.run, trained.test, "--out", tmp_path / "missing" / "out.tsv"
    )
    assert "expected --k to be an integer >= 1" in fails(capsys, "predict", trained.run, trained.test, "--k", 0)


def test_the_run_needs_its_data_no_more_and_is_trained_no_more(trained, tmp_path):
    trained.test.parent.rename(tmp_path / "elsewhere")
    try:
        assert cx.recipes.load(trained.run).classes_.tolist() == list(range(20))
    finally:
        (tmp_path / "elsewhere").rename(trained.test.parent)


def test_whoever_reads_no_further_has_enough(trained, monkeypatch, capsys):
    read, write = os.pipe()
    os.close(read)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO(write, "w")))
    with pytest.raises(SystemExit) as exit_:
        run("predict", trained.run, trained.test)
    assert exit_.value.code == 141
    assert "error" not in capsys.readouterr().err


def test_lines_are_read_a_batch_at_a_time():
    """However many there are: what was read and not answered yet is one batch at most."""
    read, most = 0, 0

    def numbers():
        nonlocal read
        while read < 5000:
            read += 1
            yield read

    done = 0
    for batch in lines.in_batches(numbers()):
        most = max(most, read - done)
        done += len(batch)
    assert (done, most) == (5000, lines.AT_A_TIME)


def test_standard_output_is_utf_8_whatever_the_locale(monkeypatch):
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    with lines.writing(None) as write:
        write("café\n")
    assert out.buffer.getvalue() == "café\n".encode()
