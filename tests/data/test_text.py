"""Sentences from text files and from Python source."""

import gzip
import lzma

import pytest

from candax.data import python_corpus, text_corpus


def words(corpus):
    return " ".join(corpus.words[i] for i in corpus.ids)


def test_lower_case_no_punctuation_no_stop_words(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text('The QUICK fox, he said , "jumps" over 12 dogs . It rained! Mr. Fox slept?\n\n = Title = \n')
    corpus = text_corpus([path], min_count=1)
    assert words(corpus) == "quick fox said jumps 12 dogs </s> rained </s> mr </s> fox slept </s> title </s>"
    assert corpus.name == "a"


def test_words_keep_their_marks_and_have_one_spelling(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("\u0130stanbul in T\u00fcrkiye\nहिन्दी भाषा\nCafe\u0301, caf\u00e9 a\u0300 b\n")
    expected = "i\u0307stanbul t\u00fcrkiye </s> हिन्दी भाषा </s> caf\u00e9 caf\u00e9 </s>"
    assert words(text_corpus([path], min_count=1)) == expected


def test_compressed_files_together(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("cats sleep\n")
    with lzma.open(tmp_path / "b.txt.xz", "wt") as file:
        file.write("dogs sleep\n")
    corpus = text_corpus([tmp_path / "a.txt.gz", tmp_path / "b.txt.xz"], min_count=1, name="both")
    assert words(corpus) == "cats sleep </s> dogs sleep </s>"
    assert corpus.name == "both"


def test_what_is_no_text_is_refused_by_name(tmp_path):
    path = tmp_path / "junk.txt"
    path.write_bytes(bytes(range(256)))
    with pytest.raises(ValueError, match=r"junk\.txt:1: expected text, got a line with a NUL"):
        text_corpus([path])
    (tmp_path / "junk.gz").write_bytes(b"no gzip")
    with pytest.raises(ValueError, match=r"junk\.gz: expected a complete \.gz file"):
        text_corpus([tmp_path / "junk.gz"])
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ValueError, match=r"[/\\]empty\.txt: expected sentences"):
        text_corpus([tmp_path / "empty.txt"])
    with pytest.raises(ValueError, match="one text file or more"):
        text_corpus([])


def test_code_splits_at_empty_lines_and_keeps_identifiers_as_they_are(tmp_path):
    (tmp_path / "a.py").write_text(
        'import os\n\n\ndef joinAll(parts):\n    """Joins."""\n    return os.path.join(*parts)  # all\n\nx = None\n'
    )
    (tmp_path / "broken.py").write_text("def (:\n  '''")
    corpus = python_corpus(tmp_path, min_count=1)
    assert words(corpus) == "os </s> joinAll parts os path join parts </s> x </s>"
