"""Triples from files, right and wrong ones; interactions from rows."""

import gzip
import lzma

import numpy as np
import pytest

from candax import data
from candax.data.tab_separated import read_rows

TRIPLES = b"ann\tlikes\tmilk\nbob\tlikes\ttea\r\n\nann\tlikes\ttea\n"


@pytest.mark.parametrize(
    ("name", "pack"), [("a.tsv", bytes), ("a", bytes), ("a.tsv.gz", gzip.compress), ("a.txt.xz", lzma.compress)]
)
def test_rows_of_plain_and_compressed_files(tmp_path, name, pack):
    (tmp_path / name).write_bytes(pack(b"\xef\xbb\xbf" + TRIPLES))
    rows = [(1, ["ann", "likes", "milk"]), (2, ["bob", "likes", "tea"]), (4, ["ann", "likes", "tea"])]
    assert list(read_rows(tmp_path / name, ("head", "relation", "tail"))) == rows


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
def test_faulty_files_are_refused_with_the_line(tmp_path, text, message):
    (tmp_path / "faulty.tsv").write_bytes(text)
    with pytest.raises(ValueError, match="faulty.tsv.*" + message):
        data.graph(tmp_path / "faulty.tsv")


def test_broken_archives_are_refused(tmp_path):
    for name, content in (("a.gz", b"no archive"), ("b.gz", gzip.compress(TRIPLES)[:-9]), ("c.xz", b"no archive")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match="expected a complete"):
            data.graph(tmp_path / name)


def test_missing_files_are_named(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        data.graph(tmp_path / "nowhere.tsv")
    with pytest.raises(ValueError, match="a file is missing"):
        data.graph(tmp_path)
    for stem in ("triples", "test"):
        (tmp_path / f"{stem}.tsv").write_bytes(TRIPLES)
    with pytest.raises(ValueError, match="a file is missing"):
        data.graph(tmp_path)  # is test.tsv a part of triples.tsv, or to be kept out of it?
    (tmp_path / "train.tsv").write_bytes(TRIPLES)
    (tmp_path / "train.txt").write_bytes(TRIPLES)
    with pytest.raises(ValueError, match=r"got train\.tsv, train\.txt"):
        data.graph(tmp_path)


def shop(*rows, **kwargs):
    return data.interactions_of("shop", [data.Row(*row) for row in rows], **kwargs)


def test_times_order_a_user():
    rows = [("u", "late", 9.0), ("v", "x", 5.0), ("u", "early", 1.0), ("u", "twin", 9.0)]
    found = shop(*rows)
    assert (found.name, found.user_names, found.offsets.tolist()) == ("shop", ("u", "v"), [0, 3, 4])
    assert [found.item_names[i] for i in found.items] == ["early", "late", "twin", "x"]
    untimed = shop(*[row[:2] for row in rows])
    assert [untimed.item_names[i] for i in untimed.items] == ["late", "early", "twin", "x"]


def test_rare_items_go_and_faulty_rows_are_refused():
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
    for wrong in (10**6, 0, 3):
        with pytest.raises(ValueError, match=f"batch_size from 2 to {2 * len(graph.train)}.*; got {wrong}"):
            data.QuestionBatches(graph, batch_size=wrong, seed=3)
