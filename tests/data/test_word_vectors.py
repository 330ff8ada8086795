"""Word vectors and their files."""

import bz2
import gzip
import lzma

import numpy as np
import pytest
import safetensors.numpy

from candax.data import WordVectors
from candax.files import WrongFileError


@pytest.fixture
def vectors():
    rng = np.random.default_rng(0)
    return WordVectors(("the", "naïve", "cat", "dog"), rng.normal(size=(4, 5)).astype(np.float32))


@pytest.mark.parametrize("ending", ["txt", "vec", "bin", "safetensors"])
def test_files_read_back_to_the_same_bits(tmp_path, vectors, ending):
    path = tmp_path / "deep" / f"v.{ending}"
    vectors.save(path)
    again = WordVectors.load(path)
    assert again.words == vectors.words
    np.testing.assert_array_equal(again.vectors, vectors.vectors)
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_compressed_files_are_read_by_the_ending_before(tmp_path, vectors):
    for ending, module in ((".gz", gzip), (".BZ2", bz2), (".xz", lzma)):
        for of in ("bin", "txt"):
            vectors.save(tmp_path / f"v.{of}")
            (tmp_path / f"v.{of}{ending}").write_bytes(module.compress((tmp_path / f"v.{of}").read_bytes()))
            again = WordVectors.load(tmp_path / f"v.{of}{ending}")
            assert again.words == vectors.words
            np.testing.assert_array_equal(again.vectors, vectors.vectors)
    (tmp_path / "v.bin.gz").write_bytes(gzip.compress((tmp_path / "v.bin").read_bytes()[:-9]))
    with pytest.raises(WrongFileError, match=r"v\.bin\.gz: .* ends after 3 of 4 words"):
        WordVectors.load(tmp_path / "v.bin.gz")
    (tmp_path / "v.safetensors.gz").write_bytes(b"")
    with pytest.raises(WrongFileError, match=r"v\.safetensors\.gz: expected .* not compressed: unpack it"):
        WordVectors.load(tmp_path / "v.safetensors.gz")


def test_gensim_opens_both_formats(tmp_path, vectors):
    models = pytest.importorskip("gensim.models")
    for ending, binary in (("txt", False), ("bin", True)):
        vectors.save(tmp_path / f"v.{ending}")
        opened = models.KeyedVectors.load_word2vec_format(str(tmp_path / f"v.{ending}"), binary=binary)
        assert tuple(opened.index_to_key) == vectors.words
        np.testing.assert_array_equal(opened.vectors, vectors.vectors)
        opened.save_word2vec_format(str(tmp_path / f"gensim.{ending}"), binary=binary)
        back = WordVectors.load(tmp_path / f"gensim.{ending}")
        assert back.words == vectors.words
        np.testing.assert_allclose(back.vectors, vectors.vectors, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("v.txt", b"", "first line"),
        ("v.txt", b"2 2\na 1 2\n", "ends after 1 of 2"),
        ("v.txt", b"1 2\na 1\n", "v.txt:2: expected a word and 2 numbers, got 1"),
        ("v.txt", b"1 2\na 1 x\n", "v.txt:2: expected a word and 2 numbers"),
        ("v.txt", b"1 1\na_b 1_000\n", "v.txt:2: expected a word and 1 numbers; an underscore"),
        ("v.txt", b"2 2\na 1 2\nb 1 nan\n", "v.txt:3: .* a vector of 'b' with nan"),
        ("v.txt", b"2 1\nb inf\na 1\n", "v.txt:2: .* a vector of 'b' with nan or infinity"),
        ("v.txt", b"2 1\nb 1e400\na 1\n", "v.txt:2: .* a vector of 'b' with nan or infinity"),
        ("v.txt", b"2 1\n 1\na 1\n", "v.txt:2: expected a word and 1 numbers, got 1 numbers behind b''"),
        ("v.txt", b"3 1\na 1\nb 1\na 1\n", "v.txt:4: .* 'a', which .*v.txt:2 has already"),
        ("v.txt", b"1 2\na 1 2\nb 1 2\n", "v.txt:3: expected 1 words"),
        ("v.txt", b"1 2\n\xff 1 2\n", "v.txt:2: expected text in UTF-8"),
        ("v.bin", b"2 1\na " + bytes(4) + b"a " + bytes(4), "v.bin: word 2: .* 'a', which .* word 1"),
        ("v.bin", b"1000000000 1000\na " + bytes(4), "promises"),
        ("v.txt", b"99999999999 999999\n", "promises"),
        ("v.bin", b"2 2\na " + b"\0" * 8, "ends after 1 of 2"),
        ("v.bin", b"2 1\na " + bytes(4) + b"\n " + bytes(4), "its word 2 is empty"),
        ("v.bin", b"2 1\na" + b"x" * 70000, "ends after 0 of 2"),
        ("v.bin", bytes(range(256)), "first line"),
        ("v.safetensors", b"junk", "expected word vectors"),
        ("v.safetensors", b"", "expected word vectors"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_holds_no_vectors_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordVectors.load(path)


def test_other_names_missing_files_and_white_space_are_refused(tmp_path, vectors):
    with pytest.raises(ValueError, match=r"ends in \.txt"):
        vectors.save(tmp_path / "v.npz")
    for ending in ("txt", "bin", "safetensors"):
        with pytest.raises(FileNotFoundError):
            WordVectors.load(tmp_path / f"none.{ending}")
    with pytest.raises(ValueError, match="got a folder"):
        WordVectors.load(tmp_path)
    spaced = WordVectors(("a b",), np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="white space"):
        spaced.save(tmp_path / "v.txt")
    assert not (tmp_path / "v.txt").exists()
    spaced.save(tmp_path / "v.safetensors")
    assert WordVectors.load(tmp_path / "v.safetensors").words == ("a b",)
    with pytest.raises(ValueError, match="a vector for each of 2 words"):
        WordVectors(("a", "b"), np.ones((1, 2), np.float32))


def test_neighbours_and_analogies_follow_directions():
    # Axes: royal, male, rest. Lengths differ, and must not matter.
    table = {"king": (1, 1, 0), "queen": (1, -1, 0), "man": (0, 3, 0.1), "woman": (0, -2, 0.1), "car": (-1, 0, 5)}
    vectors = WordVectors(tuple(table), np.array(list(table.values()), np.float32))
    assert vectors.neighbors("king", 1)[0][0] == "man"
    assert vectors.analogy("man", "woman", "king", 1)[0][0] == "queen"
    assert len(vectors.neighbors("king", 99)) == 4
    assert "King" in vectors
    np.testing.assert_array_equal(vectors["KING"], vectors["king"])
    with pytest.raises(ValueError, match=r"'quean' is none of the 5 words .* Near in spelling: queen"):
        vectors.neighbors("quean")
    with pytest.raises(ValueError, match="1 word or more"):
        vectors.neighbors("king", 0)


def test_safetensors_of_another_kind_are_named_with_what_they_hold(tmp_path):
    safetensors.numpy.save_file({"class_vectors": np.ones((2, 2))}, tmp_path / "model.safetensors")
    with pytest.raises(WrongFileError, match=r"model\.safetensors: .* another kind: .* are \['class_vectors'\]"):
        WordVectors.load(tmp_path / "model.safetensors")


@pytest.mark.parametrize(
    ("words", "rows", "message"),
    [
        (("a", "b", "a"), [[1.0], [2.0], [3.0]], "word 3: .* 'a', which word 1 has already"),
        (("a", "b"), [[1.0], [np.nan]], "word 2: .* a vector of 'b' with nan"),
    ],
)
def test_what_could_not_be_read_back_is_refused(words, rows, message):
    with pytest.raises(ValueError, match=message):
        WordVectors(words, np.array(rows, np.float32))


def test_texts_with_a_mark_at_the_start_and_empty_lines_at_the_end_are_read(tmp_path):
    (tmp_path / "v.txt").write_text("\ufeff2 1\na 1\nb 2\n\n\n", encoding="utf-8")
    assert WordVectors.load(tmp_path / "v.txt").words == ("a", "b")
    (tmp_path / "v.txt").write_text("2 1\na 1\n\nb 2\n")
    with pytest.raises(ValueError, match=r"v.txt:3: expected a word and 1 numbers"):
        WordVectors.load(tmp_path / "v.txt")
