"""The means of several models that `candax train` measures."""

import json

from tests.commands import run, write_dataset


def test_means_are_the_same_of_models_that_were_just_trained_and_of_those_of_an_earlier_run(tmp_path):
    data = write_dataset(tmp_path / "data")
    options = ("--dim", 8, "--epochs", 10, "--batch-size", 16, "--num-sampled", 8, "--average", 2)
    out = tmp_path / "run"

    def rows():
        run("train", "--dataset", data, "--out", out, *options)
        return json.loads((out / "results.json").read_text())

    at_once = rows()
    assert [row["method"] for row in at_once][-2:] == ["mean of 2", "mean of 2 and neighbours"]
    (one,) = (row for row in at_once if "seed" in row)
    assert at_once[-2]["ndcg@5"] != one["ndcg@5"]
    study = json.loads((out / "study.json").read_text())
    study["rows"] = [row for row in study["rows"] if not row["method"].startswith("mean")]
    (out / "study.json").write_text(json.dumps(study))
    assert rows() == at_once
