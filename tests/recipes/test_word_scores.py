"""Scores on files of similarity and of analogies."""

import numpy as np
import pytest

from candax.data import WordVectors
from candax.recipes.words import measures, word_analogies, word_similarity
from candax.recipes.words.scores import file_scores, read_similarity

TABLE = {"king": (1, 1), "queen": (1, -1), "man": (0, 1), "woman": (0.1, -1), "car": (-1, 0)}


@pytest.fixture
def vectors():
    return WordVectors(tuple(TABLE), np.array(list(TABLE.values()), np.float32))


def test_ranks_of_what_is_not_finite_are_the_last():
    logits = np.array([[1.0, 3.0, 1.0], [np.nan, 2.0, 1.0], [np.nan, 2.0, 3.0]])
    assert measures._ranks(logits, np.array([0, 1, 0])).tolist() == [2.5, 2, 3]


@pytest.mark.parametrize("separator", ["\t", " ", ",", ";"])
def test_similarity_is_the_correlation_of_ranks(tmp_path, vectors, separator):
    path = tmp_path / "pairs.txt"
    rows = [("King", "man", 9), ("king", "queen", 5), ("king", "car", 1), ("king", "crown", 8)]
    lines = [f"word1{separator}word2{separator}score", *(separator.join(map(str, row)) for row in rows)]
    lines += [separator.join(("king", "queen", "nan")), "king"]
    path.write_text("\n".join(lines) + "\n\n")
    found = word_similarity(vectors, path)
    assert found.spearman == pytest.approx(1.0)
    assert (len(found.cosines), found.skipped, found.passed_over) == (3, 1, 3)
    np.testing.assert_allclose(found.cosines[0], np.sqrt(0.5), rtol=1e-6)
    path.write_text(separator.join(("king", "man", "1")) + "\n" + separator.join(("king", "queen", "2")))
    assert word_similarity(vectors, path).spearman == pytest.approx(-1.0)


@pytest.mark.parametrize(
    "text",
    [
        "word1\tword2\tPOS\tSimLex999\tconc(w1)\nking\tman\tN\t1.58\t2.72\nking\tqueen\tN\t9.2\t3\n",
        "king\tman\tV\t1.58\tSYNONYMS\nking\tqueen\tV\t9.2\tNONE\nking\tcar\tV\tnan\t3\n",
        "Word 1\tWord 2\tHuman (Mean)\nking\tman\t1.58\nking\tqueen\t9.2\n",
        "Word 1;Word 2;a;b\nking;man;x;1.58\nking;queen;x;9.2\n",
        "Word 1 Word 2 Human\nking man 1.58\nking queen 9.2\n",
    ],
)
def test_published_files_are_read_as_they_are(tmp_path, text):
    (tmp_path / "pairs.txt").write_text(text)
    pairs, passed_over = read_similarity(tmp_path / "pairs.txt")
    assert (pairs, passed_over) == ([("king", "man", 1.58), ("king", "queen", 9.2)], 1)


def test_analogies_count_what_is_asked_and_what_is_not(tmp_path, vectors):
    path = tmp_path / "questions.txt"
    path.write_text(
        ": one\nMan Woman King Queen\nman woman queen king\nman king woman crown\n"
        ": two\nman king woman queen\nman king\n"
    )
    answers = word_analogies(vectors, path)
    assert answers.asked == 3
    assert (answers.skipped, answers.passed_over) == ({"one": 1, "two": 0}, 1)
    assert {name: right.tolist() for name, right in answers.right.items()} == {"one": [True, False], "two": [True]}
    assert answers.accuracy == pytest.approx(2 / 3)
    # With woman, the fourth word, out of reach nothing can be asked.
    assert np.isnan(word_analogies(WordVectors(("x", *vectors.words), np.ones((6, 2))), path, restrict=4).accuracy)


def test_files_of_something_else_are_refused(tmp_path, vectors):
    path = tmp_path / "file.txt"
    path.write_text("nothing here\n")
    with pytest.raises(ValueError, match="two words and a number, found none"):
        word_similarity(vectors, path)
    with pytest.raises(ValueError, match="lines of four words; found none"):
        word_analogies(vectors, path)
    with pytest.raises(ValueError, match="4 words or more"):
        word_analogies(vectors, path, restrict=3)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        word_similarity(vectors, path)


def test_two_files_of_one_name_are_refused(tmp_path, vectors):
    paths = [tmp_path / folder / "test.txt" for folder in ("one", "two")]
    with pytest.raises(ValueError, match="different names"):
        file_scores(vectors, paths, [])
