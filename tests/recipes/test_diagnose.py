"""`candax diagnose` on a checkpoint of `candax train` and on arrays in a file."""

import json

import matplotlib.image
import numpy as np
import pytest

from candax.diagnostics.result import MEASURES
from tests.commands import fails, run, write_dataset

QUICK = ("--num-draws", 4, "--num-examples", 8, "--top-k", 3)


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    return write_dataset(tmp_path / "tiny", unlabelled_tests=True)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return {
        "class_vectors": rng.normal(size=(20, 4)),
        "embeddings": rng.normal(size=(12, 4)).astype(np.float16),
        "labels": rng.integers(0, 20, 12),
    }


def results(out):
    return json.loads((out / "results.json").read_text())


def test_a_run_of_train_is_diagnosed_as_it_was_trained(dataset, tmp_path, capsys):
    small = ("--encoder", "relu", "--num-sampled", 8, "--batch-size", 16, "--dim", 8, "--learning-rate", 0.05)
    common = ("train", "--dataset", dataset, *small)
    found = []
    for steps in (1, 120):
        trained = tmp_path / f"run{steps}"
        run(*common, "--steps", steps, "--out", trained)
        out = tmp_path / f"out{steps}"
        methods = ("--samplers", "top_k", "--losses", "css", "--num-sampled", 4)
        run("diagnose", trained, *QUICK, *methods, "--out", out)
        found.append(results(out))
    before, after = found
    assert after["num_classes"] == 20
    assert after["num_examples"] == 8
    assert after["top_k"] == 3
    # Of the trained model the best 4 of 20 classes hold almost all of the probability; of the new one they do not.
    assert before["rows"][0]["z_bias"] < -0.5
    assert after["rows"][0]["z_bias"] > -0.3
    printed = capsys.readouterr().out
    assert "p(true) and candidates" in printed
    assert "diagnostics.png" in printed


def test_arrays_in_a_file(arrays, tmp_path):
    np.savez(tmp_path / "model.npz", **arrays, class_biases=np.zeros(20), counts=np.ones(20, np.int64))
    out = tmp_path / "out"
    names = ("--samplers", "unigram", "in_batch", "--losses", "css", "nce", "--num-sampled", 5)
    run("diagnose", tmp_path / "model.npz", *QUICK, *names, "--out", out)
    rows = results(out)["rows"]
    assert [(row["sampler"], row["loss"]) for row in rows] == [
        ("unigram", "css"),
        ("unigram", "nce"),
        ("in_batch", "css"),
        ("in_batch", "nce"),
    ]
    assert set(MEASURES) < set(rows[0])
    assert rows[1]["z_bias"] is None
    assert rows[0]["num_candidates"] == 5
    assert rows[2]["num_candidates"] == 8
    assert matplotlib.image.imread(out / "diagnostics.png").shape[0] > 300


def test_what_a_sampler_lacks_is_said_before_others_are_measured(arrays, tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "model.npz", **arrays)
    monkeypatch.setattr("candax.diagnostics.diagnose", lambda *args, **options: pytest.fail("measured"))
    error = fails(capsys, "diagnose", tmp_path / "model.npz", "--samplers", "uniform", "unigram", "--out", tmp_path)
    assert "unigram needs label frequencies" in error


def test_wrong_files_and_arguments_end_in_one_line(arrays, tmp_path, capsys):
    path = tmp_path / "model.npz"

    def line(*args, **changed):
        kept = {name: value for name, value in {**arrays, **changed}.items() if value is not None}
        np.savez(path, **kept)
        return fails(capsys, "diagnose", path, *args, "--samplers", "uniform", "--out", tmp_path / "out")

    assert "expected the array labels" in line(labels=None)
    assert "class_biases of shape (20,), one per class, got (3,)" in line(class_biases=np.zeros(3))
    assert "(20, 4), (12, 4) and (11,)" in line(labels=np.zeros(11, int))
    assert "labels from 0 to 19" in line(labels=np.full(12, 20))
    assert "labels from 0 to 19, or -1 where there is none" in line(labels=np.full(12, -2))
    assert "finite counts of 0 or more" in line(counts=np.full(20, -1.0))
    assert "finite counts of 0 or more" in line(counts=np.full(20, np.nan))
    assert "integer labels" in line(labels=np.zeros(12))
    assert "numbers in embeddings" in line(embeddings=np.full((12, 4), "a"))
    assert "as class vectors, 4, got 3" in line(embeddings=np.zeros((12, 3)))
    assert "finite class vectors" in line(class_vectors=np.full((20, 4), np.nan))
    assert "none to measure on" in line(labels=np.full(12, -1))
    assert "--num-examples of 1 or more, got 0" in line("--num-examples", 0)
    assert "--seed of 0 or more" in line("--seed", -1)
    assert "expected an even number of draws, 4 or more, got --num-draws 3" in line("--num-draws", 3)
    np.savez(path, **{**arrays, "labels": np.array([None] * 12)})
    assert "plain arrays" in fails(capsys, "diagnose", path, "--out", tmp_path / "out")
    with path.open("wb") as file:
        np.save(file, np.eye(3))
    assert "plain arrays" in fails(capsys, "diagnose", path, "--out", tmp_path / "out")
    path.write_text("no arrays")
    assert "plain arrays" in fails(capsys, "diagnose", path, "--out", tmp_path / "out")
    assert "holds no config.json" in fails(capsys, "diagnose", tmp_path / "nowhere", "--out", tmp_path / "out")
    (tmp_path / "out/study.json").write_text('{"study": "train", "rows": [{}]}')
    assert "has results of train" in fails(capsys, "diagnose", path, "--out", tmp_path / "out")
    (tmp_path / "out/study.json").unlink()
    assert "'log_uniform'" in fails(capsys, "diagnose", path, "--samplers", "psychic")
