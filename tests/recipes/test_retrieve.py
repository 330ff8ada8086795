"""`candax retrieve`: baselines by hand, a training that beats the most popular, its files, and its use."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax import cli
from candax.recipes.common.catalog import SAMPLERS
from candax.recipes.retrieval import building, command, tower
from candax.recipes.sequences import files, neighbours
from candax.recipes.sequences.packing import PackedBatch
from tests.commands import fails, run

OPTIONS = ("--dim", 16, "--hidden-dim", 16, "--num-sampled", 8, "--num-rows", 8, "--length", 16, "--epochs", 12)
OPTIONS += ("--learning-rate", 0.02, "--dropout", 0.1, "--item-dropout", 0, "--curve-users", 20)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """20 items in a circle: each user goes on from a start, so that the next item is known; and a run on it."""
    folder = tmp_path_factory.mktemp("retrieve")
    rng = np.random.default_rng(0)
    walks = [(rng.integers(20) + np.arange(rng.integers(4, 9))) % 20 for _ in range(150)]
    (folder / "shop.txt").write_text(
        "".join(f"u{user} {' '.join(map(str, walk))}\n" for user, walk in enumerate(walks))
    )
    run("retrieve", "--dataset", folder / "shop.txt", *OPTIONS, "--out", folder / "run")
    return folder


def test_a_training_beats_the_most_popular_and_writes_its_results(trained):
    rows = json.loads((trained / "run" / "results.json").read_text())
    found = {(row["method"], row.get("seed"), row["seen"], row["search"]): row for row in rows}
    assert {(row["task"], row["data"], row["split"]) for row in rows} == {("retrieve", "shop", "test")}
    towers, popular = (found[*row, "left_out", "exact"] for row in (("two_towers", 0), ("most popular", None)))
    assert towers["ndcg@10"] > 2 * popular["ndcg@10"]
    assert towers["seconds"] > 0
    assert found["two_towers", 0, "left_out", "ivf_bq"]["recall@10"] >= towers["recall@10"] - 0.05
    assert found["two_towers", 0, "ranked", "exact"]["ndcg@10"] < towers["ndcg@10"]
    assert {"item neighbours", "sequential neighbours"} <= {row["method"] for row in rows}
    assert (trained / "run" / "retrieve.png").stat().st_size > 0


def test_a_run_that_is_there_is_not_trained_again(trained, capsys):
    before = (trained / "run" / "results.json").read_bytes()
    run("retrieve", "--dataset", trained / "shop.txt", *OPTIONS, "--out", trained / "run")
    assert "4 of 4 rows are in" in " ".join(capsys.readouterr().out.split())
    assert (trained / "run" / "results.json").read_bytes() == before
    (row,) = (row for row in json.loads((trained / "run" / "study.json").read_text())["rows"] if "seed" in row)
    assert [(trained / "run" / path).is_file() for path in row["models"]] == [True]


def test_a_run_is_used(trained, capsys):
    found = cx.recipes.load(trained / "run")
    assert isinstance(found, cx.recipes.TwoTowerRecommender)
    (items, scores), (popular, _) = found.recommend([["3", "4", "5"], ["unknown"]], 3)
    assert items[0] == "6"
    assert scores == sorted(scores, reverse=True)
    assert set(popular) <= set(found.items)
    # Without order, what was taken counts and not when.
    (other, _), *_ = found.recommend([["5", "3", "4"]], 3)
    assert other == items
    (trained / "ask.txt").write_text("ann 3 4 5\n")
    run("predict", trained / "run", trained / "ask.txt", "--k", 3)
    assert [line.split("\t")[2] for line in capsys.readouterr().out.splitlines()] == items
    again = cx.recipes.TwoTowerRecommender.of(cx.recipes.common.finished.read(found.save(trained / "again")))
    assert again.recommend([["3", "4", "5"]], 3)[0][0] == items


@pytest.mark.parametrize(("seen", "options"), [("left_out", ()), ("ranked", ("--keep-seen",))])
def test_recall_of_what_is_recommended_is_that_of_the_evaluation(seen, options, trained, capsys):
    lines = [line.split() for line in (trained / "shop.txt").read_text().splitlines()]
    (trained / "ask.txt").write_text("".join(" ".join(line[:-1]) + "\n" for line in lines))
    run("predict", trained / "run", trained / "ask.txt", "--format", "jsonl", *options)
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    hits = [line[-1] in one["names"] for line, one in zip(lines, found, strict=True)]
    rows = json.loads((trained / "run" / "results.json").read_text())
    (measured,) = (
        row for row in rows if row["method"] == "two_towers" and (row["seen"], row["search"]) == (seen, "exact")
    )
    assert np.mean(hits) == pytest.approx(measured["recall@10"], abs=1e-9)


def test_item_neighbours_by_hand(tmp_path):
    (tmp_path / "shop.txt").write_text("a 1 2 3 9\nb 1 3 9\nc 9 9 9\n")
    found = files.load(str(tmp_path / "shop.txt"))
    scores = neighbours.ItemNeighbours(found)(found.questions("test")[slice(0, 1)])[0]
    one, two, three, nine = (found.item_names.index(item) for item in "1239")
    # Trained on: a has 1, 2, 3; b has 1, 3; c has 9.
    assert scores[one] == pytest.approx(1 / np.sqrt(2) + 1)
    assert scores[two] == pytest.approx(2 / np.sqrt(2))
    assert scores[three] == pytest.approx(1 + 1 / np.sqrt(2))
    assert scores[nine] == 0


def test_the_tower_reads_bags_and_no_further_than_its_user():
    head = cx.Head(10, 8, rngs=nnx.Rngs(0))
    read = tower.UserTower(head, 16, rngs=nnx.Rngs(1))
    read.eval()

    def asked(items, segments):
        return read(PackedBatch(*(jnp.array([part], jnp.int32) for part in (items, segments, items, segments))))[0]

    packed = asked([1, 2, 3, 4, 5, -1], [0, 0, 0, 1, 1, -1])
    np.testing.assert_allclose(packed[3:5], asked([4, 5], [0, 0]), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(packed[2], asked([3, 1, 2], [0, 0, 0])[2], rtol=1e-5, atol=1e-5)
    assert np.isfinite(packed).all()
    ordered = tower.UserTower(head, 16, recency=0.5, rngs=nnx.Rngs(1))
    ordered.eval()
    bag = PackedBatch(*(jnp.array([part], jnp.int32) for part in ([1, 2], [0, 0], [1, 2], [0, 0])))
    turned = PackedBatch(*(jnp.array([part], jnp.int32) for part in ([2, 1], [0, 0], [2, 1], [0, 0])))
    assert not np.allclose(ordered(bag)[0, 1], ordered(turned)[0, 1], atol=1e-3)


def test_every_method_has_its_candidates():
    for name, changes in command.METHODS.items():
        settings = command.RetrieveSettings(num_sampled=8, **changes)
        settings.check()
        sampler, loss = building.pair_of(settings, 30)
        assert (sampler is None) == (name == "full_softmax")
        assert callable(loss)


@pytest.mark.parametrize("in_batch", [True, False])
@pytest.mark.parametrize("name", SAMPLERS)
def test_labels_of_the_batch_join_every_sampler_that_allows_it(name, in_batch):
    settings = command.RetrieveSettings(num_sampled=8, sampler=name, in_batch=in_batch)
    sampler, _ = building.pair_of(settings, 30)
    # midx and learned_clusters follow the batch, so that counts do not add.
    joined = in_batch and name in ("uniform", "log_uniform", "unigram", "learned_unigram")
    assert (sampler.facts.law_over == "batch") == (joined or name == "in_batch")
    distinct = name in ("uniform", "log_uniform", "unigram") and not in_batch
    assert not (distinct and sampler.facts.with_replacement)


@pytest.mark.parametrize("changes", [{"hard": 4}, {"sampler": "top_k"}])
def test_item_vectors_of_features_are_computed_anew_for_a_sampler_that_looks_at_them(changes):
    for features in (None, "features.tsv"):
        settings = command.RetrieveSettings(num_sampled=8, item_features=features and Path(features), **changes)
        sampler, _ = building.pair_of(settings, 30)
        assert sampler.schedule(50) == (features is not None)


def test_a_number_that_is_given_takes_the_place_of_a_method_s_own():
    def settings(*args):
        return cli._parse(["retrieve", *args])[1].ready()

    def of(settings, name):
        return settings.of(name)

    by_order = settings("--methods", "by_order")
    assert of(by_order, "by_order").recency == 0.8
    assert of(settings("--methods", "by_order", "--recency", "0.5"), "by_order").recency == 0.5
    assert of(settings("--methods", "hard", "--hard", "16"), "hard").hard == 16
    with pytest.raises(ValueError, match=r"leaves --sampler open, got --sampler unigram and --methods \('in_batch',\)"):
        settings("--methods", "in_batch", "--sampler", "unigram")
    settings("--methods", "in_batch", "two_towers", "--sampler", "unigram")


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name in command.METHODS if name != "two_towers"])
def test_every_method_trains(trained, tmp_path, method):
    some = ("--methods", method, *OPTIONS, "--epochs", 1, "--out", tmp_path / "out")
    run("retrieve", "--dataset", trained / "shop.txt", *some)
    assert (tmp_path / "out" / "results.json").exists()


def test_wrong_data_and_settings_end_in_one_line(tmp_path, capsys):
    here = ("--out", tmp_path / "out")
    (tmp_path / "shop.csv").write_text("ann,tea,noon\n")
    assert "shop.csv:1: expected a time" in fails(capsys, "retrieve", "--dataset", tmp_path / "shop.csv", *here)
    assert "nowhere" in fails(capsys, "retrieve", "--dataset", tmp_path / "nowhere", *here)
    assert "--dim of 1 or more, got 0" in fails(capsys, "retrieve", "--dim", 0, *here)
    assert "a dropout below 1" in fails(capsys, "retrieve", "--dropout", 1, *here)
    assert "--recency above 0 and at most 1" in fails(capsys, "retrieve", "--recency", 2, *here)


def test_fewer_items_than_are_asked_for(tmp_path):
    """Recall at 10 of five items is 1, and there is nothing to look up in an index."""
    (tmp_path / "few.txt").write_text("u1 a b c d\nu2 b c d e\nu3 a c d e\nu4 c d e a\n")
    run("retrieve", "--dataset", tmp_path / "few.txt", "--quick", "--out", tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert {row["recall@10"] for row in rows} == {1.0}
    assert {row["method"] for row in rows} >= {"most popular", "two_towers"}
    assert "ivf_bq" not in {row["search"] for row in rows}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": None}, "a training that draws candidates, for --hard, got --hard 8 and --loss None"),
        ({"methods": ("full_softmax",)}, "a training that draws candidates, for --hard, got --hard 8 and --methods"),
        ({"sampler": "unigram"}, "expected either --hard or --sampler, got --hard 8 and --sampler unigram"),
        ({"methods": ("two_towers", "in_batch")}, "methods without a sampler of their own, for --hard, got --hard 8"),
    ],
)
def test_hard_candidates_beside_what_leaves_no_room_for_them_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        command.RetrieveSettings(hard=8, **options).ready()
    command.RetrieveSettings(hard=8, methods=("two_towers", "full_softmax")).ready()
