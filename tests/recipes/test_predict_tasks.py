"""`candax predict` on runs of `candax sequences` and `links` and on words: figures are those that were measured."""

import json
import lzma
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import candax as cx
from candax.recipes.predict.lines import Source
from candax.recipes.predict.questions import questions
from tests.commands import fails, piped, run


def answered(text):
    """Names by input, best first."""
    found = {}
    for line in text.splitlines():
        asked, rank, name, _ = line.split("\t")
        found.setdefault(asked, []).append(name)
        assert len(found[asked]) == int(rank)
    return found


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A run on users who go round a circle of 20 items, and what is left of them without their last items."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    lines = []
    for user in range(150):
        start, length = rng.integers(20), rng.integers(4, 9)
        lines.append([f"u{user}", *(f"i{item}" for item in (start + np.arange(length)) % 20)])
    (folder / "shop.txt").write_text("".join(" ".join(line) + "\n" for line in lines))
    options = "--dim 8 --num-sampled 8 --num-rows 4 --length 16 --epochs 3 --curve-users 20"
    run("sequences", "--dataset", folder / "shop.txt", *options.split(), "--out", folder / "run")
    return SimpleNamespace(
        run=folder / "run", histories=[line[:-1] for line in lines], last=[line[-1] for line in lines]
    )


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """A run on a graph of 30 entities."""
    folder = tmp_path_factory.mktemp("graph")
    triples = sorted({(f"e {i % 30}", f"r{i % 3}", f"e {(i * 7 + i // 30) % 30}") for i in range(300)})
    parts = {"test": triples[::9], "train": [triple for i, triple in enumerate(triples) if i % 9]}
    for name, part in parts.items():
        (folder / f"{name}.tsv").write_text("".join("\t".join(triple) + "\n" for triple in part))
    options = "--dim 8 --num-sampled 8 --batch-size 16 --epochs 3 --curve-questions 20"
    run("links", "--dataset", folder, *options.split(), "--out", folder / "run")
    return SimpleNamespace(run=folder / "run", test=parts["test"], triples=triples)


def test_recall_of_what_is_recommended_is_that_of_the_evaluation(shop, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("".join(" ".join(history) + "\n" for history in shop.histories))
    run("predict", shop.run, tmp_path / "in.txt", "--k", 10, "--out", tmp_path / "out.tsv")
    assert "inputs answered: 150" in capsys.readouterr().err
    found = answered((tmp_path / "out.tsv").read_text())
    rows = json.loads((shop.run / "results.json").read_text())
    (measured,) = (row for row in rows if row["method"] == "transformer" and row["seen"] == "left_out")
    users = [history[0] for history in shop.histories]
    for k in (5, 10):
        recall = np.mean([last in found[user][:k] for user, last in zip(users, shop.last, strict=True)])
        assert recall == pytest.approx(measured[f"recall@{k}"], abs=1e-9)
    assert not any({*history[1:]} & {*found[history[0]]} for history in shop.histories)
    # With what was seen, against the other protocol.
    run("predict", shop.run, tmp_path / "in.txt", "--keep-seen", "--out", tmp_path / "seen.tsv")
    found = answered((tmp_path / "seen.tsv").read_text())
    (measured,) = (row for row in rows if row["method"] == "transformer" and row["seen"] == "ranked")
    recall = np.mean([last in found[user] for user, last in zip(users, shop.last, strict=True)])
    assert recall == pytest.approx(measured["recall@10"], abs=1e-9)


@pytest.mark.parametrize("which", ["", "models/*", "models/*/model.safetensors"])
def test_class_vectors_and_names_are_exported(which, shop, tmp_path):
    run("export", next(shop.run.glob(which)) if which else shop.run, "--out", tmp_path)
    model = cx.recipes.load(shop.run)
    vectors = np.load(tmp_path / "head.class_vectors.npy")
    np.testing.assert_array_equal(vectors, np.asarray(model.model.head.whole().vectors)[:20])
    assert json.loads((tmp_path / "head.class_names.json").read_text()) == list(model.items)


def test_all_forms_of_histories_are_answered_alike(shop, monkeypatch, capsys):
    some = shop.histories[:5]
    spaced = "".join(" ".join(history) + "\n" for history in some)
    timed = "".join(f"{9 - t},{user},5,{item}\n" for user, *items in some for t, item in enumerate(items[::-1]))
    tabbed = "".join(f"{user}\t{item}\n" for user, *items in some for item in items)
    each = []
    for text in (spaced, "time,user,rating,item\n" + timed, tabbed):
        piped(monkeypatch, text)
        run("predict", shop.run, "-", "--k", 3)
        out, err = capsys.readouterr()
        assert ("lines that name columns: 1" in err) == text.startswith("time,")
        each.append(out)
    assert each[0] == each[1] == each[2]


def test_unknown_items_are_left_out_and_counted(shop, monkeypatch, capsys):
    piped(monkeypatch, "ann nothing i3 i4\nbob nothing\n")
    run("predict", shop.run, "-", "--k", 2, "--format", "jsonl")
    out, err = capsys.readouterr()
    ann, bob = (json.loads(line) for line in out.splitlines())
    model = cx.recipes.load(shop.run)
    assert [ann["names"]] == [items for items, _ in model.recommend([["i3", "i4"]], 2)]
    assert bob["names"] == list(model.items[:2]) or sum(bob["scores"]) <= 1
    assert "items unknown to the run, left out of histories: 2" in err
    assert "users without a known item, answered by the most popular items: 1" in err


def test_a_long_history_does_not_change_the_answers_of_others(shop, monkeypatch):
    model = cx.recipes.load(shop.run)
    some = [history[1:] for history in shop.histories[:20]]
    alone = model.recommend(some, 3)
    monkeypatch.setattr("candax.recipes.sequences.recommender._MOST_LEFT_OUT", 50)
    long = model.recommend([*some, ["i1", "i2"] * 500], 3)
    assert len(long[-1][0]) == 3
    for (items, scores), (expected, of) in zip(long[:-1], alone, strict=True):
        assert items == expected
        np.testing.assert_allclose(scores, of, rtol=1e-4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "expected lines to answer, got an empty input"),
        ("ann i1\nbob\n", "standard input:2: expected a user and items separated by spaces, got 'bob'"),
        ("ann,i1\nann,i2,3\n", "standard input:2: expected user,item or user,item,time, alike in all lines"),
        ("ann\ti1\nbob\ti2\nann\ti3\n", "standard input:3: expected the lines of a user to stand together"),
        ("user,item\n", "expected lines to answer, got an empty input"),
        (f"ann,{'x' * 200_000}\n", "standard input:1: expected fields separated by commas"),
        ("ann,i1,noon\n", "standard input:1: expected a time: a finite number, or a date"),
        ("user,item,stars,time\nann,i1,5,1\nann,i2,5\n", "standard input:3: expected 4 columns as in the line that"),
        ("user,item,time\nann,i1,5,1\n", "standard input:2: expected 3 columns as in the line that names them"),
    ],
)
def test_bad_histories_say_where(text, message, shop, monkeypatch, capsys):
    piped(monkeypatch, text)
    assert message in fails(capsys, "predict", shop.run, "-")
    monkeypatch.setattr(sys, "stdin", None)  # as a shell's <&- makes it
    assert "standard input, which is closed" in fails(capsys, "predict", shop.run, "-")


def test_ranks_of_completions_are_those_of_the_evaluation(graph, tmp_path, capsys):
    questions = [f"{head}\t{relation}\n?\t{relation}\t{tail}\n" for head, relation, tail in graph.test]
    (tmp_path / "in.tsv").write_text("".join(questions))
    run("predict", graph.run, tmp_path / "in.tsv", "--k", 100, "--out", tmp_path / "out.tsv")
    assert f"inputs answered: {2 * len(graph.test)}" in capsys.readouterr().err
    rows = [line.split("\t") for line in (tmp_path / "out.tsv").read_text().splitlines()]
    num_entities = len({end for head, _, tail in graph.triples for end in (head, tail)})
    each = [[row[2] for row in rows[at : at + num_entities]] for at in range(0, len(rows), num_entities)]
    assert len(each) == 2 * len(graph.test)
    inverse = []
    for (head, relation, tail), tails, heads in zip(graph.test, each[::2], each[1::2], strict=True):
        for found, answer, known in (
            (tails, tail, {t for h, r, t in graph.triples if (h, r) == (head, relation)}),
            (heads, head, {h for h, r, t in graph.triples if (r, t) == (relation, tail)}),
        ):
            inverse.append(1 / (1 + [name for name in found if name not in known - {answer}].index(answer)))
    (measured,) = (
        row
        for row in json.loads((graph.run / "results.json").read_text())
        if row["method"] == "complex" and row["unseen"] == "kept"
    )
    assert np.mean(inverse) == pytest.approx(measured["mrr"], rel=1e-6)


def test_questions_are_read_in_each_form_and_unknown_ones_counted(graph, monkeypatch, capsys):
    model = cx.recipes.load(graph.run)
    head, relation, tail = graph.triples[1]
    piped(monkeypatch, f"{head}\t{relation}\n{head}\t{relation}\t?\n?\t{relation}\t{tail}\nnobody\t{relation}\n")
    run("predict", graph.run, "-", "--k", 4, "--format", "jsonl", "--exclude-known")
    out, err = capsys.readouterr()
    one, same, heads, nobody = (json.loads(line)["names"] for line in out.splitlines())
    assert one == same == model.complete(head, relation, 4, exclude_known=True)[0]
    assert heads == model.complete(None, relation, 4, tail=tail, exclude_known=True)[0]
    for wrong in ({"head": head, "tail": tail}, {"head": None}):
        with pytest.raises(ValueError, match="expected a head or a tail"):
            model.complete(relation=relation, **wrong)
    assert nobody == []
    assert tail not in one
    assert "unknown to the run, left without an answer: 1" in err
    names, scores = model.complete(head, relation, 3)
    np.testing.assert_allclose(model.score(head, relation, names), scores, rtol=1e-4, atol=1e-6)
    piped(monkeypatch, f"subject\tpredicate\tobject\n{head}\t{relation}\t?\n")
    run("predict", graph.run, "-", "--k", 4, "--format", "jsonl", "--exclude-known")
    out, err = capsys.readouterr()
    assert [json.loads(line)["names"] for line in out.splitlines()] == [one]
    assert "lines that name columns: 1" in err
    piped(monkeypatch, "subject\tpredicate\tobject\n")
    assert "expected lines to answer, got an empty input" in fails(capsys, "predict", graph.run, "-")
    piped(monkeypatch, f"{head}\t{relation}\t{tail}\n")
    assert "standard input:1: expected head<tab>relation, " in fails(capsys, "predict", graph.run, "-")
    piped(monkeypatch, f"{head}\t{relation}\n")
    assert "expected --keep-seen with a run of `candax sequences` or `candax retrieve` alone" in fails(
        capsys, "predict", graph.run, "-", "--keep-seen"
    )


def test_a_first_line_that_may_be_a_question_is_one():
    for first, number in (("h\tr", 2), ("h\tr\t?", 2), ("h\tr\tt", 1), ("s\tr", 1), ("h\tp", 1)):
        lines = enumerate([first.encode(), b"cat\tis"], 1)
        found = questions(Source(Path("graph.tsv"), lines), Counter(), lambda one: one[1:3] in {("h", "r")})
        assert len(list(found)) == number


def test_words_are_answered_as_by_neighbours(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    vectors = cx.data.WordVectors(tuple(f"w{i}" for i in range(50)), rng.normal(size=(50, 6)).astype(np.float32))
    vectors.save(tmp_path / "vectors.bin")
    (packed := tmp_path / "packed.bin.xz").write_bytes(lzma.compress((tmp_path / "vectors.bin").read_bytes()))
    for given in (tmp_path, tmp_path / "vectors.bin", packed):
        piped(monkeypatch, "w3\nstrange\nW7\n")
        run("predict", given, "-", "--k", 4)
        out, err = capsys.readouterr()
        found = answered(out)
        assert found == {word: [name for name, _ in vectors.neighbors(word, 4)] for word in ("w3", "W7")}
        assert "words without a vector, left without an answer: 1" in err
    piped(monkeypatch, "two words\n")
    assert "standard input:1: expected one word per line" in fails(capsys, "predict", tmp_path, "-")


def test_gensim_opens_the_vectors(tmp_path):
    gensim = pytest.importorskip("gensim.models", reason="gensim is not installed")
    vectors = cx.data.WordVectors(("up", "höher", "down"), np.arange(12, dtype=np.float32).reshape(3, 4) - 5)
    for ending in ("txt", "bin"):
        path = tmp_path / f"vectors.{ending}"
        vectors.save(path)
        keyed = gensim.KeyedVectors.load_word2vec_format(str(path), binary=ending == "bin")
        assert keyed.index_to_key == list(vectors.words)
        np.testing.assert_array_equal(keyed.vectors, vectors.vectors)
        keyed.save_word2vec_format(str(path), binary=ending == "bin")
        np.testing.assert_array_equal(cx.data.WordVectors.load(path).vectors, vectors.vectors)


def test_interfaces_say_what_is_missing(shop):
    with pytest.raises(ValueError, match="call fit"):
        cx.recipes.SequenceRecommender().recommend([["a"]])
    with pytest.raises(ValueError, match="call fit"):
        cx.recipes.LinkPredictor().complete("a", "b")
    with pytest.raises(ValueError, match=r"expected options among sampler, .* got dimension"):
        cx.recipes.SequenceRecommender(dimension=3)
    with pytest.raises(ValueError, match="expected dim to be an integer, got 'many'"):
        cx.recipes.LinkPredictor(dim="many")
    with pytest.raises(ValueError, match="two items or more"):
        cx.recipes.SequenceRecommender(dim=8).fit([["a"]])
    with pytest.raises(ValueError, match=r"triples .head, relation, tail. of texts"):
        cx.recipes.LinkPredictor(dim=8).fit([("a", "b")])
