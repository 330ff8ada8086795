"""What is known about items and users: files of text and numbers, and towers that read them."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import candax as cx
from candax.recipes.retrieval import features
from candax.recipes.sequences import files, packing
from tests.commands import run

ITEMS = """id\tname\tprice\tshape
tea\tGreen tea\t2\tround
milk\tOat milk, green\t4\tround

jam\tRed jam\t\tgreen
honey\tgreen\t9\tround
"""
NAMES = ("tea", "milk", "jam", "salt")


@pytest.fixture
def table(tmp_path):
    (tmp_path / "items.tsv").write_text(ITEMS)
    return tmp_path / "items.tsv"


def test_columns_are_text_or_numbers_of_what_is_trained_on(table, capsys):
    found = features.read_features(table, NAMES, np.array([True, True, False, True]), "items")
    # Green of the name and round: those that two of the items that are trained on have. Green of the shape is another.
    assert found.num_words == 2
    assert sorted(found.words[0]) == sorted(found.words[1]) == [0, 1]
    assert (found.words[2:] == -1).all()
    np.testing.assert_allclose(found.numbers[:, 0], [-1, 1, 0, 0], atol=1e-6)
    assert "3 of 4 items, 1 columns of numbers, 2 of text with 2 words; 1 ids that" in " ".join(
        capsys.readouterr().out.split()
    )


@pytest.mark.parametrize(
    ("values", "columns", "message"),
    [
        (("1", "nan", "-inf"), 1, "column price: 2 values that are not finite are taken as missing"),
        (("1", "n/a", "3"), 0, "column price: text, as 1 of 3 values are no numbers, such as 'n/a'"),
        (("1", "1_0", "3"), 0, "column price: text, as 1 of 3 values are no numbers, such as '1_0'"),
        (("1", "", "3"), 1, ""),
        (("low", "5", "high"), 0, ""),
        (("1", "[/b]", "3"), 0, "such as '[/b]'"),
        (("nan", "nan", "inf"), 0, ""),
        (("", "", ""), 0, ""),
    ],
)
def test_values_that_are_no_numbers_are_told(values, columns, message, table, capsys):
    table.write_text(
        "id\tprice\n" + "".join(f"{name}\t{value}\n" for name, value in zip(NAMES[:3], values, strict=True))
    )
    found = features.read_features(table, NAMES, np.ones(4, bool), "items")
    assert found.numbers.shape == (4, columns)
    said = " ".join(capsys.readouterr().out.split())
    assert message in said
    assert bool(message) == ("column price:" in said)


@pytest.mark.parametrize("value", ["1.7e9 + 10 * k", "k * 1e-9", "k * 1e-310", "1e12 + k", "k * 1e300"])
def test_numbers_are_standardised_whatever_their_size(value, table):
    """Of times in seconds and of rates, by the closed form for equal steps; the last item is not trained on."""
    names = [str(k) for k in range(9)]
    rows = [f"{k}\t{eval(value, {'k': k})!r}\t-0.1\t0\n" for k in range(8)]
    table.write_text("id\tvalue\tsame\tzero\n" + "".join(rows) + "8\t1e308\t7\t7\n")
    found = features.read_features(table, tuple(names), np.arange(9) < 8, "items").numbers
    expected = np.zeros((8, 3))
    expected[:, 0] = (np.arange(8) - 3.5) / np.sqrt(63 / 12)
    np.testing.assert_allclose(found[:8], expected, atol=1e-3)
    assert found[8].tolist() == [10, 10, 10]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "items.tsv:1: expected a header of an id and columns"),
        ("id\n", "items.tsv:1: expected a header of an id and columns"),
        ("id\tprice\ntea\t1\t2\n", "items.tsv:2: expected 2 columns as in the header, got 3"),
        ("id\tprice\ntea\t1\ntea\t2\n", "items.tsv:3: expected one line for each id, got 'tea' again"),
        ("id\tprice\nbread\t1\n", "expected ids of items that the data have, such as 'tea'"),
    ],
)
def test_bad_files_say_where(table, text, message):
    table.write_text(text)
    with pytest.raises(ValueError, match=message):
        features.read_features(table, NAMES, np.ones(4, bool), "items")


def test_a_header_that_is_an_id_is_noted(table, capsys):
    table.write_text("tea\tblack\nmilk\twhite\n")
    features.read_features(table, NAMES, np.ones(4, bool), "items")
    said = " ".join(capsys.readouterr().out.split())
    assert "items.tsv:1: taken for names of columns, although 'tea' is one of the items" in said


def test_vectors_are_sums_of_words_and_numbers():
    known = features.Features(np.array([[0, 1], [1, -1], [-1, -1]]), np.array([[1.0], [0], [2]], np.float32), 2)
    part = features.FeaturePart(known, 4, rngs=nnx.Rngs(0))
    words, matrix = part.words.embedding[...], part.numbers.kernel[...]
    expected = [(words[0] + words[1]) / np.sqrt(2) + matrix[0], words[1], 2 * matrix[0], np.zeros(4)]
    np.testing.assert_allclose(part(jnp.array([0, 1, 2, -1])), np.stack(expected), atol=1e-6)


def test_each_place_knows_its_user(tmp_path):
    (tmp_path / "shop.txt").write_text("a 1 2 3\nb 4 5 6\nc 1 7 8 9\n")
    found = files.load(str(tmp_path / "shop.txt"))
    batch = packing.PackedBatches(found, 1, 16, 0)[0, 0]
    owner = {item: user for user in range(3) for item in found.items[found.offsets[user] : found.offsets[user + 1]]}
    one = found.item_names.index("1")
    places = [(item, user) for item, user in zip(batch.items[0], batch.users[0], strict=True) if item not in (-1, one)]
    assert len(places) == 2  # of each user the last item is asked for, and the one before is a label alone
    assert all(owner[item] == user for item, user in places)
    assert (batch.users[batch.items < 0] == -1).all()
    ((asked, rows, at),) = packing.packed_questions(found, found.questions("test"), 16, 1)
    assert asked.users[rows, at].tolist() == [0, 1, 2]


def test_a_training_with_features_is_used(tmp_path):
    rng = np.random.default_rng(0)
    walks = [(rng.integers(20) + np.arange(rng.integers(4, 9))) % 20 for _ in range(60)]
    lines = [f"u{user} {' '.join(map(str, walk))}\n" for user, walk in enumerate(walks)]
    (tmp_path / "shop.txt").write_text("".join(lines))
    (tmp_path / "items.tsv").write_text("id\tkind\n" + "".join(f"{item}\tkind{item % 5}\n" for item in range(20)))
    (tmp_path / "users.tsv").write_text("id\tage\n" + "".join(f"u{user}\t{user}\n" for user in range(60)))
    options = ["--dim", 8, "--hidden-dim", 8, "--num-sampled", 8, "--num-rows", 4, "--length", 16, "--epochs", 4]
    options += ["--item-features", tmp_path / "items.tsv", "--user-features", tmp_path / "users.tsv"]
    run("retrieve", "--dataset", tmp_path / "shop.txt", *options, "--curve-users", 20, "--out", tmp_path / "run")
    found = cx.recipes.load(tmp_path / "run")
    ((items, scores),) = found.recommend([["3", "4"]], 3)
    assert len(items) == 3
    assert np.isfinite(scores).all()
    again = cx.recipes.load(found.save(tmp_path / "again"))
    assert again.recommend([["3", "4"]], 3)[0] == (items, scores)
