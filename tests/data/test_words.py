"""Texts as word ids."""

import bz2
import gc
import gzip
import lzma
import os
import sysconfig
import warnings

import numpy as np
import pytest

from candax.data import text_words, words as module, words_of

TEXT = "The cat sat, the cat's mat\n\nA dog\nthe END\n"


def spelled(text):
    """The sentences, in words."""
    out = [[]]
    for i in text.ids:
        if i == -1:
            out.append([])
        else:
            out[-1].append(text.words[i])
    assert out.pop() == []
    return out


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open), (".bz2", bz2.open)])
def test_files_are_read_alike_however_they_are_packed(tmp_path, suffix, opener):
    path = tmp_path / f"text.txt{suffix}"
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(TEXT)
    text = text_words([path], min_count=1)
    assert spelled(text) == [["the", "cat", "sat", "the", "cat's", "mat"], ["a", "dog"], ["the", "end"]]
    assert text.words[0] == "the"
    assert text.counts.tolist() == sorted(text.counts.tolist(), reverse=True)
    assert text.total == 10
    assert "The" in text_words([path], min_count=1, keep_case=True).words


def test_words_keep_their_marks_and_have_one_spelling(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text("\u0130stanbul is in T\u00fcrkiye\nहिन्दी भाषा\nCafe\u0301 caf\u00e9 e\u0301te\u0301's \u0301\n")
    sentences = [
        ["i\u0307stanbul", "is", "in", "t\u00fcrkiye"],
        ["हिन्दी", "भाषा"],
        ["caf\u00e9"] * 2 + ["\u00e9t\u00e9's"],
    ]
    assert spelled(text_words([path], min_count=1)) == sentences
    assert "\u0130stanbul" in text_words([path], min_count=1, keep_case=True).words
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(module, "_CHARACTERS", 30)  # a letter and its mark may come in two pieces
    assert spelled(text_words([path], min_count=1)) == sentences


def test_texts_with_long_names_are_cached(tmp_path, monkeypatch):
    path = tmp_path / ("\u00e9" * 120)
    path.write_text(TEXT)
    first = text_words([path], min_count=1)
    monkeypatch.setattr(module, "words_of", lambda *a, **k: 1 / 0)
    assert text_words([path], min_count=1).name == first.name == path.name


def test_sentences_can_be_cut_anywhere(monkeypatch):
    monkeypatch.setattr(module, "_TOKENS", 4)
    sentences = [["b", "a", "b"], ["b"], ["a", "a", "b", "b"]]
    text = words_of("x", sentences, min_count=1)
    assert list(text.sentences()) == sentences
    words = "bab" + "b" + "aabb"
    for start in range(9):
        for stop in range(start, 10):
            assert "".join(map("".join, text.sentences(start, stop))) == words[start:stop]
    assert list(text.sentences(2, 5)) == [["b"], ["b"], ["a"]]


def test_small_pieces_give_what_one_large_piece_gives(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    lines = [" ".join(f"w{i * j % 17}" for j in range(1, i % 23 + 2)) for i in range(200)]
    path.write_text("\n".join(lines))
    whole = words_of("x", [line.split() for line in lines], min_count=134)
    monkeypatch.setattr(module, "_CHARACTERS", 128)
    monkeypatch.setattr(module, "_TOKENS", 7)
    parts = text_words([path], min_count=134)
    assert 2 < parts.num_words == whole.num_words < 17
    np.testing.assert_array_equal(parts.ids, whole.ids)
    assert parts.digest == whole.digest
    assert not np.any((parts.ids[1:] == -1) & (parts.ids[:-1] == -1))


def test_a_line_without_end_is_cut_between_words(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_CHARACTERS", 50)
    path = tmp_path / "text.txt"
    path.write_text(" ".join(f"word{i % 30}" for i in range(300)))
    text = text_words([path], min_count=1)
    assert text.total == 300
    assert text.num_words == 30
    assert len(spelled(text)) > 3


def test_the_cache_is_used_and_follows_the_files(tmp_path, monkeypatch):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    first = text_words([path], min_count=1)
    with monkeypatch.context() as patch:
        patch.setattr(module, "words_of", lambda *a, **k: 1 / 0)
        again = text_words([path], min_count=1)
        with pytest.raises(ZeroDivisionError):
            text_words([path], min_count=2)
    assert isinstance(again.ids, np.memmap)
    np.testing.assert_array_equal(first.ids, again.ids)
    assert (first.words, first.counts.tolist(), first.digest) == (again.words, again.counts.tolist(), again.digest)
    place = min((tmp_path / "cache").glob("[!.]*"), key=lambda path: path.stat().st_size)
    whole = place.read_bytes()
    ids = whole.index(first.ids.tobytes())
    zeros = whole[:ids] + bytes(8) + whole[ids + 8 :]
    swapped = whole[:ids] + whole[ids + 4 : ids + 8] + whole[ids : ids + 4] + whole[ids + 8 :]
    for broken in (whole[:-3], zeros, swapped, whole[:200], b"", bytes(1000)):
        place.write_bytes(broken)
        with pytest.warns(UserWarning, match="is broken and is built again"):
            built = text_words([path], min_count=1)
        assert built.words == first.words
        np.testing.assert_array_equal(built.ids, first.ids)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "words_of", lambda *a, **k: 1 / 0)
    assert text_words(["./text.txt"], min_count=1).digest == first.digest
    monkeypatch.undo()
    monkeypatch.setenv("CANDAX_CACHE", str(tmp_path / "cache"))
    path.write_text(TEXT + "more more\n")
    assert "more" in text_words([path], min_count=1).words


def test_pruning_while_counting_keeps_what_is_frequent():
    rng = np.random.default_rng(0)
    sentences = [[f"f{i}" for i in range(5)] + [f"r{rng.integers(10**6)}" for _ in range(20)] for _ in range(100)]
    pruned = words_of("x", sentences, min_count=20, max_words=50)
    plain = words_of("x", sentences, min_count=20)
    assert pruned.words == plain.words == ("f0", "f1", "f2", "f3", "f4")
    # What was forgotten before it had come often enough is not counted; here nothing frequent was.
    np.testing.assert_array_equal(pruned.counts, plain.counts)
    np.testing.assert_array_equal(pruned.ids, plain.ids)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"text\.txt: expected two .* found 0 among 0 words"),
        (b"word\n", "found 0 among 1 words"),
        (b"same " * 50, "found 1 among 50 words"),
        (bytes(range(1, 256)) * 9, "expected text in UTF-8"),
        (b"\0" * 100, r"text\.txt:1: expected text, got a line with a NUL byte"),
        ("first\nsecond\n".encode("utf-16-le"), r"text\.txt:1: expected text, got a line with a NUL byte"),
        (b"a\n" * 70_000 + b"\nb\0\n", r"text\.txt:70002: expected text, got a line with a NUL byte: is it binary\?"),
    ],
)
def test_what_is_no_text_is_refused(tmp_path, content, message):
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        text_words([path])
    assert not list((tmp_path / "cache").glob("[!.]*"))


def test_broken_archives_and_missing_files_are_refused(tmp_path):
    for name in ("a.gz", "a.xz", "a.bz2"):
        (tmp_path / name).write_bytes(b"no archive at all")
        with pytest.raises(ValueError, match=name.replace(".", r"\.") + ": expected a complete"):
            text_words([tmp_path / name])
    with pytest.raises(FileNotFoundError):
        text_words([tmp_path / "none.txt"])
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="expected a file, to be read more than once"):
        text_words([tmp_path / "pipe"])


def test_the_standard_library_is_the_text_of_nobody(monkeypatch, tmp_path):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.py").write_text("import sys\n\nfor part in sys.path:\n    print(part)\n" * 3)
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path / "lib")})
    text = text_words(min_count=3)
    assert text.name == "python-stdlib"
    assert set(text.words) == {"sys", "part", "path", "print"}


@pytest.mark.parametrize("sentences", [[["a", "b"]], []])
def test_no_file_is_left_open(sentences):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            assert spelled(words_of("some", sentences, min_count=1)) == sentences
        except ValueError:
            assert not sentences
        gc.collect()
    assert not [of for of in caught if of.category is ResourceWarning]
