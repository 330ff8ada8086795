"""Sequences: files, packing, figures, and a training that beats what needs none."""

import dataclasses
import json
import pickle
import re
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.cli import main
from candax.recipes.common.finished import read
from candax.recipes.sequences import building, command, files, neighbours, next_item, packing, scoring
from candax.recipes.sequences.recommender import sequences_of
from tests.commands import write_shop


def write(folder, text, name="shop.txt"):
    path = folder / name
    path.write_text(text)
    return str(path)


@pytest.fixture
def shop(tmp_path):
    return str(write_shop(tmp_path))


def test_all_forms_of_files_say_the_same(tmp_path):
    by_spaces = files.load(write(tmp_path, "ann tea milk jam\n\nbob milk\n"))
    by_commas = files.load(write(tmp_path, "ann,jam,3\nann,tea,1\nbob,milk,7\nann,milk,2\n", "shop.csv"))
    by_tabs = files.load(write(tmp_path, "ann\ttea\nann\tmilk\nann\tjam\nbob\tmilk\n", "shop.tsv"))
    for found in (by_commas, by_tabs):
        assert found.item_names == by_spaces.item_names == ("milk", "jam", "tea")
        assert found.items.tolist() == by_spaces.items.tolist() == [2, 0, 1, 0]


def test_dates_are_times_of_any_offset(tmp_path):
    text = (
        "event_time,user,item\n2024-05-02,ann,tea\n2024-05-01 23:30:00 UTC,ann,jam\n2024-05-01T23:40+02:00,ann,milk\n"
    )
    (tmp_path / "shop.csv").write_text(text)
    found = files.load(str(tmp_path / "shop.csv"))
    assert [found.item_names[item] for item in found.items] == ["milk", "jam", "tea"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ann tea milk\nbob\n", r"shop.txt:2: expected a user and items separated by spaces, got 'bob' alone"),
        ("ann tea milk jam\nann tea\n", "shop.txt:2: expected one line per user, got 'ann' as in line 1"),
        ("ann,tea,1\nann,milk\n,\n", "shop.txt:2: expected user,item or user,item,time"),
        ("ann,tea,noon\n", "shop.txt:1: expected a time: a finite number, or a date"),
        ("ann,tea,7\nann,jam,2024-05-01\n", "shop.txt:2: expected a time: a finite number, or a date"),
        ("ann,tea,1_000\n", "shop.txt:1: expected a time: a finite number, or a date"),
        ("ann\ttea\tinf\n", "shop.txt:1: expected a time: a finite number, or a date"),
        ("ann\ttea\n\nann\t\n", "shop.txt:3: expected user\titem or user\titem\ttime"),
        ("ann,tea,5,1\n", "A first line may name the columns"),
        ("user,item,time\nann,tea\n", "shop.txt:2: expected as many columns as the first line"),
        (f"ann,{'x' * 200_000}\n", "shop.txt:1: expected fields separated by commas"),
        ("ann tea milk\n", "expected users with three items or more"),
        ("", "expected lines of a user and items"),
        ("user,item,time\n", "shop.txt: expected rows of a user and an item after the names of columns, found none"),
    ],
)
def test_bad_files_say_where(text, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        files.load(write(tmp_path, text))


def test_without_training_items_nothing_is_measured_or_written(tmp_path):
    settings = command.SequencesSettings(dataset=write(tmp_path, "a 1 2 3\n"), split="validation", out=tmp_path / "out")
    with pytest.raises(ValueError, match="two items or more to train on, found none"):
        command.sequences(settings)
    assert not settings.out.exists()


@pytest.mark.parametrize(("weight", "rows"), [(0.5, ["mean of 2", "mean of 2 and neighbours"]), (0, ["mean of 2"])])
def test_a_weight_of_neighbours_of_0_adds_no_row(shop, tmp_path, weight, rows):
    settings = command.SequencesSettings(dataset=shop, average=2, neighbours=weight, out=tmp_path).ready()
    methods = [method.labels["method"] for method in command.sequences.__wrapped__(settings).methods]
    assert [name for name in methods if "mean" in name] == rows


def test_what_is_held_out(tmp_path):
    found = files.load(write(tmp_path, "a 1 2 3 4\nb 5 6\nc 7\n"))
    name = found.item_names.__getitem__
    test, validation = found.questions("test"), found.questions("validation")
    assert [name(answer) for answer in test.answers] == ["4", "6"]
    assert [name(answer) for answer in validation.answers] == ["3"]
    assert [name(item) for item in found.items[test.starts[0] : test.ends[0]]] == ["1", "2", "3"]
    assert found.counts().sum() == 3 + 1 + 1
    assert dataclasses.replace(found, held_out=2).counts().sum() == 2 + 1 + 1


def test_packed_batches_hold_each_pair_once(shop):
    found = files.load(shop)
    batches = packing.PackedBatches(found, num_rows=4, length=7, seed=0)
    for epoch in range(2):
        pairs = []
        for index in range(batches.batches_per_epoch):
            batch = batches[epoch, index]
            assert ((batch.items >= 0) == (batch.segments >= 0)).all()
            real = batch.items >= 0
            pairs += list(zip(batch.items[real], batch.labels[real], strict=True))
            # Within a segment what follows an item stands in the next place.
            same = real[:, 1:] & (batch.segments[:, 1:] == batch.segments[:, :-1])
            assert (batch.labels[:, :-1][same] == batch.items[:, 1:][same]).all()
        places = files.ranges(found.offsets[:-1], found.training_ends - 1)
        wanted = sorted(zip(found.items[places], found.items[places + 1], strict=True))
        assert sorted(pairs) == wanted
    assert (batches[0, 1].items == packing.PackedBatches(found, 4, 7, 0)[0, 1].items).all()


def test_what_shares_a_row_is_read_as_if_alone():
    head = cx.Head(10, 8, rngs=nnx.Rngs(0))
    encoder = cx.models.SequenceEncoder(head, num_blocks=2, dropout=0.5, item_dropout=0.5, rngs=nnx.Rngs(1))
    encoder.eval()
    packed = SimpleNamespace(items=jnp.array([[1, 2, 3, 4, 5, -1]]), segments=jnp.array([[0, 0, 0, 1, 1, -1]]))
    alone = SimpleNamespace(items=jnp.array([[4, 5]]), segments=jnp.array([[0, 0]]))
    np.testing.assert_allclose(encoder(packed)[0, 3:5], encoder(alone)[0], rtol=1e-5, atol=1e-6)
    longer = SimpleNamespace(items=jnp.array([[4, 5, 6]]), segments=jnp.array([[0, 0, 0]]))
    np.testing.assert_allclose(encoder(longer)[0, :2], encoder(alone)[0], rtol=1e-5, atol=1e-6)


def test_figures_are_those_by_hand(tmp_path):
    found = files.load(write(tmp_path, "a 1 2 3\nb 2 1 4\n"))
    questions = found.questions("test")
    order = [found.item_names.index(item) for item in "1234"]
    scores = np.zeros((2, 4), np.float32)
    scores[:, order] = [[5, 4, 3, 1], [5, 4, 3, 3]]
    figures = scoring.evaluate(lambda some: scores[: len(some)], found, questions, ks=(1, 2))
    # User a: 3 is first without what was seen, third with it. User b: 4 ties with 3: ranks 1.5 and 3.5.
    assert figures["recall@1"] == 0.5
    assert figures["recall@2"] == 1.0
    assert figures["mrr@2"] == pytest.approx((1 + 1 / 1.5) / 2)
    assert figures["ndcg@2"] == pytest.approx((1 + 1 / np.log2(2.5)) / 2)
    assert figures["ranked recall@2"] == 0.0


def test_only_items_that_can_be_shown_are_covered(tmp_path):
    found = files.load(write(tmp_path, "a 1 2 3 4\n"))
    figures = scoring.evaluate(lambda some: np.ones((1, 4), np.float32), found, found.questions("test"), ks=(1, 3))
    assert (figures["coverage@1"], figures["coverage@3"]) == (0.25, 0.25)  # three of four were seen


def test_a_broken_model_does_not_come_out_best(tmp_path):
    questions = files.load(write(tmp_path, "a 1 2 3\nb 2 1 4\n")).questions("test")
    scores = np.full((2, 4), np.nan, np.float32)
    assert scoring.rank_of_answers(scores, questions).tolist() == [4, 4]
    scores[np.arange(2), questions.answers] = 1
    scores[0] = 1
    assert scoring.rank_of_answers(scores, questions).tolist() == [2.5, 4]


def test_neighbours_by_hand(tmp_path):
    found = files.load(write(tmp_path, "a 1 2 3 9\nb 1 3 9\nc 9 9 9\n"))
    near = neighbours.Neighbours(found, recency=0.5)
    one, two, three = (found.item_names.index(item) for item in "123")
    table = near.table.toarray()
    assert table[one, three] == pytest.approx((0.5 + 1) / 2)
    assert table[two, three] == pytest.approx(1 / np.sqrt(2))
    question = found.questions("test")[slice(0, 1)]
    history = table[three] + 0.5 * table[two] + 0.25 * table[one]
    np.testing.assert_allclose(near(question)[0], history, rtol=1e-6)
    following = neighbours.most_frequent_successor(found)(question)[0]
    assert following.argmax() == neighbours.most_popular(found)(question)[0].argmax()  # nothing follows 3


def test_a_training_beats_what_needs_none_and_writes_its_results(shop, tmp_path, capsys):
    out = tmp_path / "run"
    options = "--dim 16 --num-sampled 8 --num-rows 8 --length 16 --epochs 12 --learning-rate 0.02 --dropout 0.1"
    more = "--item-dropout 0 --attention-dropout 0 --average 1 --curve-users 20"
    main(["sequences", "--dataset", shop, *options.split(), *more.split(), "--out", str(out)])
    rows = json.loads((out / "results.json").read_text())
    found = {(row["method"], row.get("seed"), row["seen"]): row for row in rows}
    assert {row["task"] for row in rows} == {"sequences"}
    assert found["transformer", 0, "left_out"]["recall@5"] > 2 * found["most popular", None, "left_out"]["recall@5"]
    assert found["transformer", 0, "ranked"]["recall@10"] <= found["transformer", 0, "left_out"]["recall@10"]
    assert "mean of 1 and neighbours" in {row["method"] for row in rows}
    assert {row["of"] for row in rows if row["method"].startswith("mean of 1")} == {"transformer"}
    assert (out / "sequences.png").stat().st_size > 0
    assert "transformer" in capsys.readouterr().out
    # With another weight of neighbours the same model is read, not trained again.
    main(["sequences", "--dataset", shop, *options.split(), *more.split(), "--neighbours", "0.5", "--out", str(out)])
    assert len(list((out / "models").iterdir())) == 1


def test_dropout_keeps_its_share_of_places_each_for_itself():
    from candax.models.dropout import kept

    masks = np.stack([kept(jax.random.key(seed), (64, 128), 0.3) for seed in range(50)])
    assert masks.mean() == pytest.approx(0.7, abs=0.003)
    pairs = [np.mean([np.corrcoef(a.ravel(), b.ravel())[0, 1] for a, b in zip(masks[1:], masks[:-1], strict=True)])]
    pairs += [np.corrcoef(masks[:, :, :-gap].ravel(), masks[:, :, gap:].ravel())[0, 1] for gap in (1, 2, 7, 64)]
    pairs += [np.corrcoef(masks[:, :-gap].ravel(), masks[:, gap:].ravel())[0, 1] for gap in (1, 2, 16)]
    assert np.abs(pairs).max() < 0.02


def test_sasrec_s_cross_entropy_has_one_negative_for_each_place_and_quick_runs_are_quick():
    settings = command.SequencesSettings(quick=True).ready()
    chosen = settings.of("sasrec_bce")
    assert (chosen.epochs, chosen.dim, chosen.num_blocks) == (settings.epochs, settings.dim, 2)
    given = command.SequencesSettings(dim=128, loss="css").of("sasrec_bce")
    assert (given.epochs, given.dim, given.loss) == (200, 128, "negative_sampling")
    _, loss = building.pair_of(chosen)
    true, sampled = jnp.ones((1, 1), bool), jnp.ones((1, 32), bool)
    zeros = jnp.zeros((1, 32))
    logits = cx.SampledLogits(zeros[:, :1], zeros[:, :1], true, zeros, zeros, sampled, ~sampled, num_classes=100)
    np.testing.assert_allclose(loss(logits), 2 * np.log(2), rtol=1e-6)  # the item and one negative


def test_items_of_numpy_are_kept_as_texts_and_numbers_of_python():
    found = sequences_of([list(np.arange(3)), list(np.array(["a", "b"]))])
    assert [type(name) for name in found.item_names] == [int] * 3 + [str] * 2


@pytest.mark.parametrize("mark", ["\t", ","])
def test_a_line_of_names_is_no_interaction_and_chooses_columns(mark, tmp_path):
    lines = ["timestamp item_id rating user_id", "3 tea 5 ann", "1 jam 4 ann", "2 milk x ann", "1 tea 5 user"]
    found = files.load(write(tmp_path, "\n" + "\n".join(lines).replace(" ", mark) + "\n"))
    assert (found.item_names, found.user_names) == (("tea", "jam", "milk"), ("ann", "user"))
    assert [found.item_names[item] for item in found.items[:3]] == ["jam", "milk", "tea"]
    told = "shop.txt:2: taken for names of columns, of which are read: user_id, item_id, timestamp; left out: rating"
    assert found.notes == (told, "shop.txt: 1 empty lines are passed over")


def test_names_in_two_unicode_forms_are_told(tmp_path):
    (tmp_path / "triples.tsv").write_text("caf\u00e9\tr\ttea\ncafe\u0301\tr\ttea\n")
    shop = files.load(write(tmp_path, "ann caf\u00e9 tea jam\nbob cafe\u0301 tea jam\n"))
    notes = {"items": shop.notes, "entities": cx.data.graph(tmp_path).notes}
    end = "have a name that differs from another one's in its Unicode form alone, such as 'cafe\\u0301'"
    assert notes == {what: (f"1 {what} {end}",) for what in notes}
    assert files.load(write(tmp_path, "ann cafe\u0301 tea jam\n")).notes == ()


def test_answers_that_are_in_their_history_are_told(tmp_path):
    found = files.load(write(tmp_path, "ann tea jam tea oil tea\nbob milk tea jam\n"))
    (again,) = next_item._counted(found, found.questions("test"))
    assert again.startswith("1 of 2 answers are in their own history")
    assert not next_item._counted(found, found.questions("validation"))


def test_what_is_passed_over_is_counted(tmp_path):
    found = files.load(write(tmp_path, "\nann tea milk tea\n\nbob oil\ncat tea tea milk\n"), min_count=2)
    left_out = "1 interactions with items that occur less than 2 times are left out, and with them 1 users"
    assert found.notes == ("shop.txt: 2 empty lines are passed over", left_out)
    found = files.load(write(tmp_path, "ann,tea\n\nann,jam\nann,oil\nbob,tea\n"))
    assert found.notes == ("shop.txt: 1 empty lines are passed over",)
    without, unseen = next_item._counted(found, found.questions("test"))
    assert unseen.startswith("1 of 1 answers are items that training has not")
    assert without == "1 of 2 users have too few items to be asked about"


@pytest.mark.parametrize("mark", [",", "\t", " "])
def test_text_in_another_encoding_is_told_by_its_line(mark, tmp_path):
    text = "".join(f"u{i}{mark}tea\n" for i in range(3)) + f"u4{mark}caf\xe9\n"
    (tmp_path / "shop.txt").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"shop.txt:4: expected text in UTF-8"):
        files.load(str(tmp_path / "shop.txt"))


@pytest.mark.parametrize(
    ("histories", "message"),
    [
        (np.zeros((2, 3), int), "a list with a list of items for each user, got an array"),
        ([["tea", "milk"], {"tea", "milk"}], "in the order of time, got a set as history 1"),
        (["tea", "milk"], "got 'tea' as history 0. A single history is a list in a list"),
        ([["tea", "jam"], 5], "got 5 as history 1"),
        ([["tea", None]], "items as texts or whole numbers, got None in history 0"),
        ([["tea", "jam"], ["tea", float("nan")]], "got nan in history 1"),
        ([["tea", 1.5]], "got 1.5 in history 0"),
        ([["tea", True]], "got True in history 0"),
        ([["tea", ("jam", 1)]], "got ('jam', 1) in history 0"),
        ([["tea", 1], ["1"]], "expected items that differ as texts, as which files hold them, got 1 and '1'"),
    ],
)
def test_what_is_no_history_is_said(histories, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        cx.recipes.SequenceRecommender(dim=8).fit(histories)


def test_lines_of_spaces_are_skipped(tmp_path):
    found = files.load(write(tmp_path, "  \nuser,item\nann,tea\n \nann,jam\nann,oil\n"))
    assert len(found.items) == 3


def test_options_that_no_method_takes_are_refused():
    for name, value in (("loss", "css"), ("sampler", "unigram"), ("kind", "ligr")):
        given = command.SequencesSettings(methods=("sasrec_bce", "sasrec_gbce"), **{name: value})
        with pytest.raises(ValueError, match=f"a method that leaves --{name} open, got --{name} {value}"):
            given.ready()
    command.SequencesSettings(methods=("sasrec_bce", "transformer"), loss="css").ready()
    command.SequencesSettings(methods=("sasrec_bce",), loss="negative_sampling").ready()


def test_a_name_with_a_number_is_no_column(tmp_path):
    path = write(tmp_path, "user1,item1,3\nuser1,item2,1\nuser1,item3,2\nuser1,item4,0\n")
    found = files.load(path)
    assert [found.item_names[i] for i in found.items] == ["item4", "item2", "item3", "item1"]
    path = write(tmp_path, "user_id:token,item_id:token,timestamp:float\nann,tea,2\nann,jam,1\nann,oil,3\n")
    assert len(files.load(path).items) == 3


def test_few_steps_leave_nothing_of_the_start_in_the_averages():
    histories = [[str((start + i) % 10) for i in range(6)] for start in range(60)]
    model = cx.recipes.SequenceRecommender(dim=16, num_rows=8, length=32).fit(histories)
    best = [model.recommend([[str(start)]], k=1, exclude_seen=True)[0][0][0] for start in range(10)]
    assert np.mean([found == str((start + 1) % 10) for start, found in enumerate(best)]) > 0.9


@pytest.mark.parametrize(
    ("sampler", "loss"),
    [("in_batch", "nce"), ("midx", "sampled_softmax"), ("log_uniform", "ranking")],
)
def test_other_samplers_and_losses_learn_as_well(sampler, loss):
    histories = [[str((start + i) % 10) for i in range(6)] for start in range(60)]
    model = cx.recipes.SequenceRecommender(
        dim=16, num_rows=8, length=32, epochs=30, sampler=sampler, loss=loss, num_sampled=8, smoothing=0.0
    ).fit(histories)
    best = [model.recommend([[str(start)]], k=1, exclude_seen=True)[0][0][0] for start in range(10)]
    assert np.mean([found == str((start + 1) % 10) for start, found in enumerate(best)]) > 0.4  # by chance .1


def test_one_step_trains():
    tx = next_item.common.averaged_adam(0.1, 1, 0.9)
    weight = jnp.zeros(1)
    updates, _ = tx.update(jnp.ones(1), tx.init(weight), weight)
    assert updates[0] < -0.05


def test_users_of_one_item_and_of_none_are_passed_over():
    cx.recipes.SequenceRecommender(dim=4, epochs=1, length=1).fit([[], ["a", "b", "c"]])
    one_left = dataclasses.replace(sequences_of([["a", "b", "c"], ["b", "c", "a"]]), held_out=2)
    assert neighbours.successors(one_left).nnz == 0


def test_heads_that_do_not_divide_the_coordinates_are_refused_at_once():
    with pytest.raises(ValueError, match="as the heads of transformer divide, got --dim 10 and --num-heads 4"):
        command.SequencesSettings(dim=10, num_heads=4).ready()
    command.SequencesSettings(methods=("sasrec_bce",), num_heads=1).ready()
    with pytest.raises(ValueError, match="as the heads of sasrec_bce divide, got --dim 9 and --num-heads 2"):
        command.SequencesSettings(methods=("sasrec_bce",), dim=9, num_heads=2).ready()


@pytest.mark.parametrize("kind", [cx.recipes.SequenceRecommender, cx.recipes.TwoTowerRecommender])
def test_a_recommender_is_pickled_and_knows_items_by_their_texts(kind, tmp_path):
    histories = [[1, 2, 3], [1, 2], [4, 3]] * 8
    model = kind(dim=8, epochs=2, length=8, num_rows=2, sampler="log_uniform", loss="css").fit(histories)
    (items, scores), (popular, _) = model.recommend([[1], [9]], 2)
    model.save(tmp_path)
    for other in (pickle.loads(pickle.dumps(model)), cx.recipes.load(tmp_path)):
        assert other.recommend([[1]], 2) == [(items, scores)]
        assert other.recommend([["1"]], 2) == [(items, scores)]
        assert other.recommend([[np.int64(1), "x"]], 2) == [(items, scores)]
        assert all(type(item) is int for item in items)
    with pytest.warns(UserWarning, match=r"none of the items of 2 histories is known, such as 'x', .* such as 1"):
        assert model.recommend([[], ["x"]], 2)[1][0] == popular
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert model.recommend([[]], 2)[0][0] == popular


@pytest.mark.parametrize("kind", [cx.recipes.SequenceRecommender, cx.recipes.TwoTowerRecommender])
def test_a_full_softmax_beside_methods_with_a_sampler_is_loaded(kind, tmp_path):
    """A command writes the sampler that it was given into the files of all of its methods."""
    model = kind(dim=8, epochs=1, length=8, num_rows=2, loss=None).fit([["a", "b", "c"]] * 8)
    saved = read(model.save(tmp_path))
    options = {**saved.about["options"], "sampler": "log_uniform"}
    loaded = kind.of(saved._replace(about={**saved.about, "options": options}))
    assert loaded.recommend([["a"]]) == model.recommend([["a"]])
