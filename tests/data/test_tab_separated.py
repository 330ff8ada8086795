"""Interactions and triples from files, right and wrong ones."""

import gzip
import lzma

import numpy as np
import pytest

from candax import data
from candax.data.tab_separated import read_rows

PAIRS = b"ann\tmilk\nbob\ttea\r\n\nann\ttea\n"


@pytest.mark.parametrize(
    ("name", "pack"), [("a.tsv", bytes), ("a", bytes), ("a.tsv.gz", gzip.compress), ("a.txt.xz", lzma.compress)]
)
def test_rows_of_plain_and_compressed_files(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbf" + PAIRS))
    rows = [(1, ["ann", "milk"]), (2, ["bob", "tea"]), (4, ["ann", "tea"])]
    assert list(read_rows(tmp_path / name, (2, 3), "user, item")) == rows
    assert list(read_rows(tmp_path / name, (2, 3), "user, item", header=True)) == rows[1:]


@pytest.mark.parametrize("load", [data.interactions, data.graph])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "empty file"),
        (b"\n\n", "empty file"),
        (b"a\tb\tc\td\n", ":1: expected .* columns"),
        (b"a\tb\t3\na\tb\t3\none\n", ":3: expected 3 columns .* got 1: 'one'"),
        (b"a\tb\t3\na\t\t3\n", ":2: expected no empty column"),
        (b"a\tb\t3\n\x00\x01\t\x02\t3\n", ":2: .* NUL byte"),
        (b"a\tb\t3\n\xff\xfe\xfa\n", ":2: expected text in UTF-8"),
    ],
)
def test_faulty_files_are_refused_with_the_line(tmp_path, load, text, message):
    (tmp_path / "faulty.tsv").write_bytes(text)
    with pytest.raises(ValueError, match="faulty.tsv.*" + message):
        load(tmp_path / "faulty.tsv")


def test_broken_archives_are_refused(tmp_path):
    for name, content in (("a.gz", b"no archive"), ("b.gz", gzip.compress(PAIRS)[:-9]), ("c.xz", b"no archive")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="expected a complete"):
            data.interactions(tmp_path / name)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        data.interactions(tmp_path / "nowhere.tsv")
    for load in (data.interactions, data.graph):
        with pytest.raises(ValueError, match="a file is missing"):
            load(tmp_path)
    (tmp_path / "train.tsv").write_bytes(PAIRS)
    (tmp_path / "train.txt").write_bytes(PAIRS)
    with pytest.raises(ValueError, match=r"got train\.tsv, train\.txt"):
        data.interactions(tmp_path)


def test_times_order_a_user_and_wrong_ones_are_refused(tmp_path):
    path = tmp_path / "shop.tsv"
    path.write_text("u\tlate\t9\nv\tx\t5\nu\tearly\t1e0\nu\ttwin\t9\n")
    shop = data.interactions(path)
    assert (shop.name, shop.user_names, shop.offsets.tolist()) == ("shop", ("u", "v"), [0, 3, 4])
    assert [shop.item_names[i] for i in shop.items] == ["early", "late", "twin", "x"]
    assert shop.times is not None
    assert shop.times.tolist() == [1, 9, 9, 5]
    for bad in ("noon", "nan", "inf", "1_0"):
        path.write_text(f"u\tx\t1\nu\tx\t{bad}\n")
        with pytest.raises(ValueError, match=f":2: expected a time .* got '{bad}'"):
            data.interactions(path)


def test_a_first_line_that_names_the_columns_is_no_row(tmp_path):
    (tmp_path / "train.tsv").write_text("timestamp\titem_id\tuser_id\n2\tx\tu\n1\ty\tu\n")
    (tmp_path / "test.tsv").write_text("user\titem\ttime\nu\ty\t3\n")
    found = data.interactions(tmp_path)
    assert [found.item_names[i] for i in found.items] == ["y", "x", "y"]
    assert (found.user_names, found.is_test.tolist()) == (("u",), [False, False, True])
    (tmp_path / "test.tsv").write_text("user\titem\ttime\n")
    with pytest.raises(ValueError, match="names of columns alone"):
        data.interactions(tmp_path)
    (tmp_path / "own.tsv").write_text("wer\twas\nu\tx\n")
    assert len(data.interactions(tmp_path / "own.tsv")) == 2
    assert len(data.interactions(tmp_path / "own.tsv", header=True)) == 1


def shop(*rows, **kwargs):
    return data.interactions_of("shop", [data.Row(*row) for row in rows], **kwargs)


def examples(dataset, part):
    """(history with values, label) by names."""
    names = dataset.class_names
    part = getattr(dataset, part)
    rows = []
    for i in range(len(part)):
        features, labels = part.features[[i]], part.labels[[i]]
        history = {names[j]: round(float(v), 3) for j, v in zip(features.indices, features.data, strict=True)}
        rows.append((history, *[names[j] for j in labels.indices]))
    return rows


def test_the_last_item_of_each_user_is_left_out():
    bought = shop(*[("u", item) for item in "abcab"], ("v", "c"), ("w", "b"), ("w", "a"))
    dataset = data.next_items(bought, max_history=3, recency=1.0)
    assert examples(dataset, "train") == [
        ({"a": 1.0}, "b"),
        ({"a": 0.5, "b": 1.0}, "c"),
        ({"a": 0.333, "b": 0.5, "c": 1.0}, "a"),
    ]
    # Of u's items but the latest three are left; v has one item, and so no history.
    assert examples(dataset, "test") == [({"a": 1.0, "b": 0.333, "c": 0.5}, "b"), ({"b": 1.0}, "a")]
    assert dataset.feature_names == dataset.class_names
    twice = data.next_items(shop(*[("u", item) for item in "aab"]), recency=1.0)
    assert examples(twice, "test") == [({"a": 1.5}, "b")]


def test_later_times_are_for_testing_with_all_of_the_history():
    rows = [("u", item, time) for time, item in enumerate("abcd")] + [("v", "a", 8.0), ("v", "b", 9.0)]
    dataset = data.next_items(shop(*rows), split="time", test_share=0.5, recency=0.0)
    assert examples(dataset, "train") == [({"a": 1.0}, "b"), ({"a": 1.0, "b": 1.0}, "c")]
    assert examples(dataset, "test") == [({"a": 1.0, "b": 1.0, "c": 1.0}, "d"), ({"a": 1.0}, "b")]


def test_a_test_file_continues_the_training_file(tmp_path):
    (tmp_path / "train.tsv").write_text("u\ta\nu\tb\nu\tc\nv\tb\n")
    (tmp_path / "test.tsv").write_text("v\tc\nu\ta\n")
    dataset = data.next_items(data.interactions(tmp_path), recency=0.0)
    assert examples(dataset, "test") == [({"a": 1.0, "b": 1.0, "c": 1.0}, "a"), ({"b": 1.0}, "c")]
    assert len(dataset.train) == 2
    for line, what in (("w\ta", "user 'w'"), ("u\tz", "item 'z'")):
        (tmp_path / "test.tsv").write_text(f"u\ta\n{line}\n")
        with pytest.raises(ValueError, match=rf"test.tsv:2: {what} is not in train.tsv"):
            data.interactions(tmp_path)


def test_rare_items_go_and_what_cannot_be_split_is_refused():
    rows = [("u", "a"), ("u", "rare"), ("u", "b"), ("v", "b"), ("v", "a")]
    assert shop(*rows, min_count=2).item_names == ("a", "b")
    assert len(shop(*rows, min_count=2)) == 4
    with pytest.raises(ValueError, match="3 times or more"):
        shop(*rows, min_count=3)
    with pytest.raises(ValueError, match="to have a time, or none"):
        shop(("u", "a", 1.0), ("u", "b"))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match=f"times that are finite numbers, got {bad}"):
            shop(("u", "a", bad), ("u", "b", 1.0))
    with pytest.raises(ValueError, match=r"expected test interactions .* 2 times or more, found none"):
        shop(*rows, ("v", "once", None, True), min_count=2)
    with pytest.raises(ValueError, match="for training, found none"):
        data.next_items(shop(("u", "a"), ("u", "b")))
    with pytest.raises(ValueError, match="for testing, found none"):
        data.next_items(shop(*[("u", item, 1.0) for item in "abc"]), split="time")
    with pytest.raises(ValueError, match="needs a third column"):
        data.next_items(shop(*rows), split="time")
    with pytest.raises(ValueError, match="needs a test file"):
        data.next_items(shop(*rows), split="file")
    with pytest.raises(ValueError, match="max_history >= 1"):
        data.next_items(shop(*rows), max_history=0)


def test_a_graph_in_three_files(tmp_path):
    (tmp_path / "train.tsv").write_text("a\tr\tb\na\tr\tb\nb\ts\tc\n")
    (tmp_path / "valid.tsv.gz").write_bytes(gzip.compress(b"c\tr\ta\n"))
    (tmp_path / "test.txt").write_text("a\ts\tc\n")
    graph = data.graph(tmp_path)
    assert (graph.entity_names, graph.relation_names) == (("b", "a", "c"), ("r", "s"))
    parts = [graph.train.tolist(), graph.valid.tolist(), graph.test.tolist()]
    assert parts == [[[1, 0, 0], [0, 1, 2]], [[2, 0, 1]], [[1, 1, 2]]]
    assert graph.counts.tolist() == [2, 1, 1]
    (tmp_path / "valid.tsv.gz").write_bytes(gzip.compress(b""))
    assert data.graph(tmp_path).valid.shape == (0, 3)
    for line, name in (("z\tr\ta", "z"), ("a\tr\ty", "y"), ("a\tnew\tb", "new")):
        (tmp_path / "test.txt").write_text(f"a\ts\tc\n{line}\n")
        with pytest.raises(ValueError, match=rf"test.txt:2: '{name}' is not in train.tsv"):
            data.graph(tmp_path)
        assert len(data.graph(tmp_path, unknown="drop").test) == 1


def random_triples(seed, entities=60, number=400):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, entities, (number, 2))
    return [data.Triple(f"e{h}", f"r{r}", f"e{t}") for (h, t), r in zip(ends, rng.integers(0, 3, number), strict=True)]


def test_a_split_keeps_pairs_together_and_knows_every_entity(tmp_path):
    triples = random_triples(0)
    both = [*triples, *(data.Triple(t, "inverse", h) for h, _, t in triples)]
    graph = data.graph_of("random", both, valid_share=0.2, test_share=0.2)
    sizes = [len(part) for part in (graph.train, graph.valid, graph.test)]
    assert sum(sizes) == len(set(both))
    assert all(0.1 * sum(sizes) < size for size in sizes)
    pairs = [{frozenset((h, t)) for h, _, t in part.tolist()} for part in (graph.train, graph.valid, graph.test)]
    assert not pairs[0] & pairs[1]
    assert not pairs[0] & pairs[2]
    assert not pairs[1] & pairs[2]
    assert set(graph.train[:, [0, 2]].ravel()) == set(range(graph.num_entities))
    (tmp_path / "triples.tsv").write_text("".join("\t".join(triple) + "\n" for triple in reversed(both)))
    again = data.graph(tmp_path, valid_share=0.2, test_share=0.2)
    assert again.entity_names == graph.entity_names
    assert sorted(again.test.tolist()) == sorted(graph.test.tolist())
    with pytest.raises(ValueError, match=r"triples of three texts, got \(1, 2, 3\)"):
        data.graph_of("numbers", [data.Triple(1, 2, 3)])
    with pytest.raises(ValueError, match="sum below 1"):
        data.graph_of("random", both, valid_share=0.5, test_share=0.5)


def test_known_answers_are_those_of_all_parts_in_both_directions():
    graph = data.graph_of("random", random_triples(1), valid_share=0.2, test_share=0.2)
    every = np.concatenate([graph.train, graph.valid, graph.test]).tolist()
    entities = np.array([h for h, _, _ in every[:9]] + [t for _, _, t in every[:9]])
    relations = np.array([r for _, r, _ in every[:9]] + [r + graph.num_relations for _, r, _ in every[:9]])
    found = data.KnownAnswers(graph)(entities, relations)
    for row, (entity, relation) in enumerate(zip(entities, relations, strict=True)):
        expected = {t for h, r, t in every if (h, r) == (entity, relation)}
        expected |= {h for h, r, t in every if (t, r + graph.num_relations) == (entity, relation)}
        assert sorted(found.ids[found.rows == row].tolist()) == sorted(expected)


def test_an_epoch_asks_every_question_once():
    graph = data.graph_of("random", random_triples(2), test_share=0.2)
    batches = data.QuestionBatches(graph, batch_size=10, seed=3)
    asked = [batches[5, i] for i in range(batches.batches_per_epoch)]
    rows = {(e, r, a) for b in asked for e, r, a in zip(b.entities, b.relations, b.labels[:, 0], strict=True)}
    expected = {tuple(row) for row in data.questions_of(graph.train, graph.num_relations).tolist()}
    assert rows <= expected
    assert len(rows) == 10 * batches.batches_per_epoch > len(expected) - 10
    again = data.QuestionBatches(graph, batch_size=10, seed=3)
    assert np.array_equal(again[5, 1].labels, asked[1].labels)
    assert again.identity == batches.identity
    assert not np.array_equal(batches[6, 1].labels, asked[1].labels)
    with pytest.raises(IndexError):
        batches[0, batches.batches_per_epoch]
    with pytest.raises(ValueError, match="batch_size from 1 to"):
        data.QuestionBatches(graph, batch_size=10**6, seed=3)
