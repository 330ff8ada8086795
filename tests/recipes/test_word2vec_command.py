"""`candax word2vec`, `neighbors` and `analogy`, from arguments to files."""

import json

import numpy as np
import pytest

from candax.data import WordVectors
from tests.commands import fails, run


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    rng = np.random.default_rng(0)
    # Two topics: words of one never stand beside words of the other.
    lines = [" ".join(f"{'ab'[i % 2]}{j}" for j in rng.integers(0, 8, 12)) for i in range(300)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_training_questions_and_scores(text, tmp_path, capsys):
    out, pairs, questions = tmp_path / "run", tmp_path / "pairs.txt", tmp_path / "questions.txt"
    pairs.write_text("a1 a2 9\nb1 b3 8\na1 b1 1\na2 b2 2\na1 none 5\n")
    questions.write_text(": x\na1 a2 b1 b2\na1 a2 b1 none\n")
    options = ("--epochs", 20, "--dim", 8, "--batch-size", 64, "--num-sampled", 8, "--subsample", 0)
    options += (
        "--optimizer",
        "adagrad",
        "--learning-rate",
        0.2,
        "--similarity",
        pairs,
        "--analogies",
        questions,
        "--checkpoint-every",
        300,
    )
    run("word2vec", text, "--out", out, *options)
    rows = json.loads((out / "results.json").read_text())
    assert [(row["method"], row["file"]) for row in rows] == [
        *[("PPMI, SVD", name) for name in ("pairs", "questions")],
        *[("skipgram", name) for name in ("pairs", "questions")],
    ]
    assert {(row["task"], row["data"], row["split"], row["words"]) for row in rows} == {("words", "text", "test", 3600)}
    assert rows[2]["spearman"] > max(0.7, rows[0]["spearman"] - 1e-9)
    assert rows[2]["words_per_second"] > 0
    assert (rows[2]["pairs"], rows[2]["skipped"]) == (4, 1)
    assert (rows[3]["asked"], rows[3]["skipped"]) == (1, 1)
    assert (out / "word2vec.png").stat().st_size > 0
    assert json.loads((out / "settings.json").read_text())["dim"] == 8
    tables = [WordVectors.load(out / f"vectors.{ending}") for ending in ("txt", "bin", "safetensors")]
    assert all(np.array_equal(table.vectors, tables[0].vectors) for table in tables)
    capsys.readouterr()
    run("neighbors", out / "vectors.bin", "a1", "b1", "--number", 4)
    one, other = capsys.readouterr().out.splitlines()
    assert one.startswith("a1: a")
    assert "b" not in one
    assert "a" not in other
    run("analogy", out / "vectors.txt", "a1", "a2", "b1")
    assert capsys.readouterr().out.startswith("a1 : a2 = b1 : ")
    assert "'z' is none of" in fails(capsys, "neighbors", out / "vectors.bin", "z")
    assert "dim was 8 and is 9" in fails(capsys, "word2vec", text, "--out", out, *options[:2], "--dim", 9, *options[4:])
    assert json.loads((out / "results.json").read_text()) == rows


def test_a_quick_run_takes_small_sizes_and_several_seeds(text, tmp_path, capsys):
    command = ("word2vec", text, "--quick", "--seeds", 2, "--out", tmp_path / "run")
    run(*command)
    files = [tmp_path / "run" / name for name in ("vectors.bin", "seed-1/vectors.bin")]
    first, second = (WordVectors.load(file).vectors for file in files)
    assert first.shape == second.shape == (16, 16)
    assert not np.array_equal(first, second)
    rows = json.loads((tmp_path / "run/results.json").read_text())
    assert [row["seed"] for row in rows] == [0, 1]
    # What is missing is written again, from the checkpoint of the end.
    files[1].unlink()
    run(*command)
    np.testing.assert_array_equal(WordVectors.load(files[1]).vectors, second)
    capsys.readouterr()
    run(*command)
    assert "2 of 2 rows are in" in capsys.readouterr().out
    # Results of other settings are set aside, even where vectors of theirs are missing.
    files[1].unlink()
    run(*command, "--formats", "bin")
    assert json.loads((tmp_path / "run/results-before.json").read_text()) == rows
    np.testing.assert_array_equal(WordVectors.load(files[1]).vectors, second)


def test_wrong_arguments_end_in_one_line(text, tmp_path, capsys):
    here = ("--out", tmp_path / "out")
    empty, junk = tmp_path / "empty.txt", tmp_path / "junk.txt"
    empty.write_text("")
    junk.write_bytes(bytes(range(1, 256)))
    assert "found 0 among 0 words" in fails(capsys, "word2vec", empty, *here)
    assert "expected text in UTF-8" in fails(capsys, "word2vec", junk, *here)
    assert "none.txt" in fails(capsys, "word2vec", tmp_path / "none.txt", *here)
    assert "none.txt" in fails(capsys, "word2vec", text, "--similarity", tmp_path / "none.txt", *here)
    assert "--k above 0, got 0" in fails(capsys, "word2vec", text, "--k", 0, *here)
    assert "--dim of 1 or more" in fails(capsys, "word2vec", text, "--dim", 0, *here)
    assert "--subsample of 0 or more" in fails(capsys, "word2vec", text, "--subsample", -1, *here)
    assert "none.bin" in fails(capsys, "neighbors", tmp_path / "none.bin", "a")
    assert "first line" in fails(capsys, "neighbors", junk, "a")
    assert "one word or more" in fails(capsys, "neighbors", junk)
    assert not (tmp_path / "out" / "vectors.txt").exists()
