"""`candax experiment word2vec-questions`: from a text to scores, tables and pictures."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from candax import data, training
from candax.base import Classes, Query
from candax.data import words_of
from candax.experiments import word2vec_questions, word2vec_theory
from candax.experiments.word2vec_questions import Word2VecQuestions
from candax.experiments.word2vec_theory import fit, small_text, theory
from candax.experiments.word2vec_variants import QUESTIONS, REFERENCE, Setting, options
from candax.recipes.words.measures import Pairs, geometry, nearest, overlap, rank, rare_words, shared_neighbours, split
from tests.commands import fails, run

SMALL = ("--dim", 8, "--batch-size", 32, "--num-sampled", 8, "--subsample", 0, "--seeds", 1)


def lines(number: int) -> list[str]:
    """Of two topics: words of one never stand beside words of the other."""
    rng = np.random.default_rng(0)
    return [" ".join(f"{'ab'[i % 2]}{j}" for j in rng.geometric(0.2, 12) % 12) for i in range(number)]


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines(300)) + "\n")
    return path


def test_a_question_is_answered_once(text, tmp_path, capsys, monkeypatch):
    out, pairs = tmp_path / "run", tmp_path / "pairs.txt"
    pairs.write_text("a1 a2 9\nb1 b3 8\na1 b1 1\na2 b2 2\n")
    command = ("experiment", "word2vec-questions", text, "--out", out, "--questions", "learned", *SMALL)
    command += ("--similarity", pairs)
    variants = ("reference", "learned clusters+nce")
    monkeypatch.setitem(QUESTIONS, "learned", QUESTIONS["learned"]._replace(variants=variants))
    run(*command)
    assert "learned clusters+nce" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert tuple(row["method"] for row in results["rows"]) == variants
    found = results["rows"][0]
    assert 0 < found["mrr"] <= 1
    assert -1 <= found["pairs"] <= 1
    # Without the neighbours of its words a row is made again.
    assert found["models"] == ["nearest-reference-0.npy"]
    assert results["table"][0]["words_per_second"] > 0
    assert found["curve"]["step"][-1] == found["steps"]
    assert (out / "learned.png").stat().st_size > 1000
    # Started again it trains nothing, and writes the picture again.
    (out / "learned.png").unlink()

    def diverges(*args, **options):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(training, "fit", diverges)
    run(*command)
    assert (out / "learned.png").exists()
    assert json.loads((out / "results.json").read_text()) == results
    # Another seed is trained alone.
    run(*command[:-3], 2, *command[-2:])
    assert "50%" in capsys.readouterr().out
    results = json.loads((out / "results.json").read_text())
    assert [row["diverged"] for row in results["rows"]] == [0, 1, 0, 1]
    assert results["rows"][0] == found


def test_a_training_that_diverges_leaves_no_neighbours_of_one_before(text, tmp_path, monkeypatch):
    def diverges(*args, **options):
        raise FloatingPointError("the loss is nan")

    monkeypatch.setattr(training, "fit", diverges)
    found = split(data.text_words((text,), min_count=1), None, min_count=1, window=2, subsample=0)
    settings = Word2VecQuestions(text=(text,), dim=4, batch_size=32, num_sampled=8, subsample=0, out=tmp_path)
    (tmp_path / "nearest-reference-0.npy").touch()
    method = word2vec_questions._study(settings, *found, {"correction": QUESTIONS["correction"]}, range(1)).methods[0]
    assert method.labels == {"method": REFERENCE, "seed": 0}
    assert method.run(None) == {"diverged": 1}
    assert not (tmp_path / "nearest-reference-0.npy").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", 0), "--dim of 1 or more, got 0"),
        (("--epochs", 0), "--epochs above 0"),
        (("--batch-size", 30), "multiple of 4, got --batch-size 30"),
        (("--max-words", 0), "--max-words of 1 or more"),
        (("--max-words", 100), "too few to measure with"),
        (("--similarity", "none.txt"), "none.txt"),
        (("--seeds", 0), "--seeds of 1 or more"),
        (("--restrict", 3), "--restrict of 4 or more, got --restrict 3"),
        (("--similarity", "here/mrr.txt"), "with names that no figure has, got here/mrr.txt: rename it."),
        (("--analogies", "seconds"), "with names that no figure has, got seconds: rename it."),
    ],
)
def test_wrong_settings_end_in_one_line(text, tmp_path, capsys, options, message):
    out = tmp_path / "out"
    assert message in fails(capsys, "experiment", "word2vec-questions", text, "--out", out, *options)
    assert not out.exists()


def test_rows_of_other_texts_or_judgements_are_not_kept(text, tmp_path):
    pairs = tmp_path / "pairs.txt"
    pairs.write_text("a1 a2 9\nb1 b3 8\n")

    def digests():
        whole = data.text_words((text,), min_count=1)
        train, held_out = split(whole, None, min_count=1, window=2, subsample=0)
        settings = Word2VecQuestions(text=(text,), similarity=(pairs,))
        studies = [
            word2vec_questions._study(settings, train, held_out, {"k": QUESTIONS["k"]}, range(1)),
            word2vec_theory.study(train, epochs=1, window=2, seeds=range(1)),
        ]
        return [study.data for study in studies]

    first = digests()
    assert digests() == first
    pairs.write_text("a1 a2 9\nb1 b3 7\n")
    second = digests()
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, True]
    text.write_text(text.read_text().replace("a1 ", "b1 ", 1))
    assert not set(digests()) & {*first, *second}


def test_held_out_words_are_not_trained_on():
    text = words_of("x", [line.split() for line in lines(300)], min_count=1)
    train, pairs = split(text, 3000, min_count=1, window=2, subsample=0)
    assert train.total == 2940
    assert len(pairs.words) > 40
    # Neighbours are of one topic.
    assert all(train.words[a][0] == train.words[b][0] for a, b in zip(*pairs, strict=True))


def test_ranks_of_labels():
    counts = np.array([8, 4, 2, 1])
    everything = np.ones(4, bool)
    inputs, outputs = np.eye(4, dtype=np.float32), 20 * np.roll(np.eye(4, dtype=np.float32), 1, axis=0)
    # The best class of word 0 is word 1, and so on.
    right, wrong = Pairs(np.arange(3), np.arange(1, 4)), Pairs(np.arange(3), np.arange(3))
    assert rank(inputs, outputs, right, everything, counts).mrr == 1
    assert rank(inputs, outputs, wrong, everything, counts).mrr < 0.6
    # Logits that know nothing: frequency ranks the first word first.
    found = rank(0 * inputs, outputs, Pairs(np.arange(4), np.zeros(4, int)), everything, counts)
    assert found.mrr == 1
    assert found.power > 0
    # Among the last two words only, whose logits are equal: ranks between 1 and 2, or by frequency.
    found = rank(0 * inputs, outputs, Pairs(np.arange(4), np.full(4, 3)), counts < 3, counts)
    assert found == (pytest.approx(1 / 1.5), 0)
    assert np.isnan(rank(np.nan * inputs, outputs, right, everything, counts).mrr)


def test_geometry_and_neighbours():
    vectors = np.array([[3.0, 0.1], [2.0, 0.0], [-0.1, 1.0]], np.float32)
    found = geometry(vectors, -vectors[::-1], np.array([5, 3, 2]))
    assert found[:2] == (1, -1)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert found.mean_cosine == pytest.approx(np.mean((units @ units.T)[~np.eye(3, dtype=bool)]), abs=1e-6)
    near = nearest(vectors, k=1)
    assert near.ravel().tolist() == [1, 0, 0]
    assert overlap(near, np.array([[1], [0], [1]])) == pytest.approx(2 / 3)


def test_neighbours_are_shared_with_another_training(tmp_path):
    """With the reference's of another seed, or of the only one; never with its own."""
    near = {(REFERENCE, 0): [1, 2], (REFERENCE, 1): [1, 3], ("other", 0): [1, 4], ("other", 1): [4, 5]}
    for (name, seed), words in near.items():
        np.save(tmp_path / f"nearest-{name.replace(' ', '-')}-{seed}.npy", np.array([words]))
    for seeds, shared in ((range(1), [None, 0.5]), (range(2), [0.5, 0.25])):
        assert [shared_neighbours(tmp_path, name, REFERENCE, seeds) for name in (REFERENCE, "other")] == shared


def test_a_score_that_is_none_is_no_divergence():
    (column,) = word2vec_questions._columns({"pairs": "pairs"})
    rows = [{"pairs": None, "diverged": 0.0}, {"diverged": 1.0}, {"pairs_by_seed": [0.25, 0.25], "diverged": 0.0}]
    assert [column.value(row, rows) for row in rows] == ["-", "diverged", "0.25"]


def test_rare_words_are_beyond_nine_tenths_of_the_text():
    text = words_of("x", [["a"] * 80 + ["b"] * 9 + ["c"] * 8 + ["d"] * 3], min_count=1)
    assert rare_words(text).tolist() == [False, False, True, True]


def test_variants_follow_the_setting():
    setting = Setting(num_sampled=8, num_groups=4, labels=96, learning_rate=0.1)
    for question in QUESTIONS.values():
        assert question.values is None or len(question.values) == len(question.variants)
        assert all({"num_sampled", "learning_rate"} <= set(options(variant, setting)) for variant in question.variants)
    assert options("reference", setting) == {"num_sampled": 8, "learning_rate": 0.1}
    assert options("k=1", setting) == {"num_sampled": 8, "learning_rate": 0.1, "k": 1}
    assert options("k=100", setting) == {"num_sampled": 100, "learning_rate": pytest.approx(0.02), "k": 100}
    classes = Classes(jnp.zeros((50, 2)), None, jnp.ones(50), jnp.int32(50))
    query = Query(jnp.zeros((16, 2)), jnp.full((16, 8), 3), classes)
    explicit = options("explicit power=1", setting)["sampler"]
    drawn = explicit.sample(explicit.init(jax.random.key(0), classes), jax.random.key(1), query)
    assert drawn.ids.shape == (4, 96)
    with pytest.raises(KeyError):
        options("x=1", setting)


def chain() -> list[list[str]]:
    """Sentences in which some words follow others more often than their frequencies say."""
    rng = np.random.default_rng(0)
    follows = rng.dirichlet(np.full(8, 0.7), 8)
    words, now = [], 0
    for _ in range(2500):
        now = rng.choice(8, p=follows[now])
        words.append(f"w{now}")
    return [words[i : i + 50] for i in range(0, 2500, 50)]


@pytest.mark.slow
def test_inner_products_are_what_the_noise_predicts():
    text = small_text(words_of("x", chain(), min_count=1), num_words=8)
    found = theory(text, k=5, power=0.75, epochs=40, window=1, seed=0, batch_size=64)
    assert found["correlation"] > 0.98
    assert abs(found["slope"] - 1) < 0.15
    assert found["rmse"] < 0.7 * found["rmse_pmi"]
    with pytest.raises(ValueError, match="3 pairs of words"):
        fit(np.zeros(2), np.zeros(2))


def test_a_quick_run_shows_the_geometry(text, tmp_path, capsys):
    run("experiment", "word2vec-questions", text, "--quick", "--subsample", 0, "--out", tmp_path / "run")
    assert (tmp_path / "run" / "correction.png").exists()
    shown = capsys.readouterr().out
    assert "mean cosine" in shown
    assert "with the reference of the same seed" in " ".join(shown.split())
    table = json.loads((tmp_path / "run" / "results.json").read_text())["table"]
    assert table[0]["method"] == REFERENCE
    assert table[0]["shared"] is None
    assert all(0 <= row["shared"] < 1 for row in table[1:])


@pytest.mark.slow
def test_all_questions(text, tmp_path, capsys):
    out = tmp_path / "run"
    run("experiment", "word2vec-questions", text, "--out", out, *SMALL, "--theory-epochs", 5, "--seeds", 2)
    results = json.loads((out / "results.json").read_text())
    for name, question in QUESTIONS.items():
        assert (out / f"{name}.png").exists()
        assert set(question.variants) <= {row["method"] for row in results["rows"]}
    assert (out / "theory" / "theory.png").exists()
    printed = capsys.readouterr().out
    assert "frequency missing" in printed
    assert "RMSE" in printed
