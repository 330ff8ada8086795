import bz2
import gzip
import importlib
import lzma
import os
import re
from pathlib import Path

import numpy as np
import pytest
from data_helpers import NUM_CLASSES, NUM_FEATURES, expected, file_text, lines, same_dataset, same_examples
from hypothesis import HealthCheck, given, settings, strategies as st

from candax.data import load, xml_repository as read_folder
from candax.data.xml_repository import find_sources, read_examples

# The package gives the function of this name.
MODULE = importlib.import_module("candax.data.xml_repository")
TEXT = "3 5 3\n2,0 4:0.5 1:2\n 3:1\n1\n"
COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(content=st.lists(lines, max_size=8), chunk=st.integers(1, 60), newline=st.sampled_from(["\n", "\r\n"]))
def test_round_trip_in_chunks_of_any_size(content: list, chunk: int, newline: str, tmp_path: Path) -> None:
    path = tmp_path / "train.txt"
    path.write_bytes(file_text(content, NUM_FEATURES, NUM_CLASSES).replace("\n", newline).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULE, "_CHUNK_BYTES", chunk)
        examples = read_examples(path)
    assert same_examples(examples, expected(content, NUM_FEATURES, NUM_CLASSES))
    assert examples.features.indices.dtype == examples.features.indptr.dtype == np.int32


@pytest.mark.parametrize("ending", ["", "\n", "\n\n", " \n\n  "])
def test_the_end_of_a_file_may_be_blank(tmp_path: Path, ending: str) -> None:
    path = tmp_path / "train.txt"
    path.write_text(TEXT.rstrip("\n") + ending)
    assert read_examples(path).labels.toarray().tolist() == [[True, False, True], [False] * 3, [False, True, False]]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize(
    "names", [("train", "test"), ("eurlex_train", "eurlex_test"), ("trn", "tst"), ("Trn-1", "Tst-1")]
)
def test_files_of_any_name_and_compression(tmp_path: Path, suffix: str, names: tuple[str, str]) -> None:
    for name in names:
        (tmp_path / f"{name}.txt{suffix}").write_bytes(COMPRESS[suffix](TEXT.encode()))
    dataset = read_folder(tmp_path)
    assert dataset.name == tmp_path.name
    assert dataset.train.features.toarray().tolist() == [[0, 2, 0, 0, 0.5], [0, 0, 0, 1, 0], [0] * 5]
    assert same_examples(dataset.train, dataset.test)
    assert same_dataset(dataset, load(str(tmp_path)))


def write_both(folder: Path, train: str = TEXT, test: str = TEXT) -> Path:
    (folder / "train.txt").write_text(train)
    (folder / "test.txt").write_text(test)
    return folder


def test_names_are_taken_where_they_fit(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "features.txt.xz").write_bytes(lzma.compress("a\nb\nc\nd\n\u00e9\n".encode()))
    (tmp_path / "labels.txt").write_text("one\ntwo\n")
    with pytest.warns(UserWarning, match=r"labels.txt is not used: expected 3 names, one per line; got 2"):
        dataset = read_folder(tmp_path)
    assert dataset.feature_names == ("a", "b", "c", "d", "\u00e9")
    assert dataset.class_names is None


def test_names_are_read_as_utf_8_or_not_used(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "features.txt").write_bytes("\ufeffa\nb\nc\nd\ne\n".encode())
    (tmp_path / "labels.txt").write_bytes("\u00e9\n\u00e8\nc\n".encode("latin-1"))
    with pytest.warns(UserWarning, match=r"labels.txt is not used: expected text in UTF-8"):
        dataset = read_folder(tmp_path)
    assert dataset.feature_names == ("a", "b", "c", "d", "e")
    assert dataset.class_names is None


def test_missing_and_ambiguous_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(ValueError, match=r"expected one train file .* found 0: notes.md"):
        read_folder(tmp_path)
    (tmp_path / "train.txt").write_text(TEXT)
    with pytest.raises(ValueError, match=r"expected one test file .* found 0: notes.md, train.txt"):
        read_folder(tmp_path)
    (tmp_path / "test.txt").write_text(TEXT)
    (tmp_path / "train.txt.gz").write_bytes(gzip.compress(TEXT.encode()))
    with pytest.raises(ValueError, match=r"expected one train file .* found 2: train.txt, train.txt.gz"):
        read_folder(tmp_path)


def test_one_file_cannot_be_both(tmp_path: Path) -> None:
    (tmp_path / "train_test.txt").write_text(TEXT)
    with pytest.raises(ValueError, match=r"train_test.txt could be either"):
        read_folder(tmp_path)


def test_companions_without_a_header_are_no_candidates(tmp_path: Path) -> None:
    write_both(tmp_path)
    (tmp_path / "filter_labels_train.txt").write_text("0 1\n")
    (tmp_path / "trn_X_Xf.txt").write_text("3 5\n1:1\n")
    assert find_sources(tmp_path).train.name == "train.txt"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "header of three integers"),
        ("3 5\n", 1, "header of three integers"),
        ("1 5:1 2:3\n", 1, "header of three integers"),
        (TEXT.replace("3 5 3", "4 5 3"), 5, "expected 4 examples, as the header states; the file ends after 3"),
        (TEXT.replace("3 5 3", "2 5 3"), 4, "expected 2 examples, as the header states; got more"),
        (TEXT.replace("3 5 3", "0 5 3"), 2, "expected 0 examples, as the header states; got more"),
        (TEXT + "\n \n0 1:1\n", 7, "expected 3 examples, as the header states; got more"),
        (TEXT.replace("4:0.5", "5:0.5"), 2, "feature id from 0 to 4"),
        (TEXT.replace("3:1", "3:1 3:2"), 3, "feature 3 twice"),
        (TEXT.replace("\n1\n", "\n1,1\n"), 4, "label 1 twice"),
        (TEXT.replace("\n1\n", "\n3\n"), 4, "label id from 0 to 2"),
        (TEXT.replace("3:1", "3:nan"), 3, "finite"),
    ],
)
@pytest.mark.parametrize("chunk", [1, 7, 1 << 22])
def test_faults_are_named_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, line: int, message: str, chunk: int
) -> None:
    write_both(tmp_path, test=text)
    monkeypatch.setattr(MODULE, "_CHUNK_BYTES", chunk)
    with pytest.raises(ValueError, match=message) as caught:
        read_folder(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path.resolve() / 'test.txt'}:{line}: ")


def test_headers_that_disagree(tmp_path: Path) -> None:
    write_both(tmp_path, test=TEXT.replace("3 5 3", "3 6 3"))
    with pytest.raises(
        ValueError, match=r"number of features in both headers; got 5 in .*train.txt:1 and 6 in .*test.txt:1"
    ):
        read_folder(tmp_path)


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz"])
@pytest.mark.parametrize("fault", ["cut", "flipped", "plain"])
def test_damaged_compression(tmp_path: Path, suffix: str, fault: str) -> None:
    text = "2000 5 3\n" + "".join(f"{i % 3} {i % 5}:{i * 7919 % 1009}\n" for i in range(2000))
    packed = bytearray(COMPRESS[suffix](text.encode()))
    if fault == "flipped":
        packed[len(packed) // 2] ^= 0xFF
    content = {"cut": packed[: len(packed) // 2], "flipped": packed, "plain": text.encode()}[fault]
    path = tmp_path / f"train.txt{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + r":\d+: "):
        read_examples(path)


def test_a_header_that_breaks_off_is_the_damaged_line(tmp_path: Path) -> None:
    path = tmp_path / "train.txt.gz"
    path.write_bytes(COMPRESS[".gz"](b"2000 5 3")[:-9])
    with pytest.raises(ValueError, match=re.escape(str(path)) + ":1: damaged at or after this line"):
        read_examples(path)


def test_read_again_only_when_a_file_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_both(tmp_path)
    reads = []
    monkeypatch.setattr(
        MODULE, "read_examples", lambda path, done: reads.append(path.name) or read_examples(path, done)
    )
    first = read_folder(tmp_path)
    assert same_dataset(read_folder(tmp_path), first)
    assert reads == ["train.txt", "test.txt"]
    # Same size, other content and time.
    (tmp_path / "test.txt").write_text(TEXT.replace("0.5", "0.7"))
    os.utime(tmp_path / "test.txt", ns=(1, 1))
    assert read_folder(tmp_path).test.features.toarray()[0, 4] == np.float32(0.7)
    assert len(reads) == 4


def test_unknown_names_say_what_is_possible() -> None:
    with pytest.raises(ValueError, match=r"no data set 'mnist': expected 'python-stdlib' or a folder"):
        load("mnist")
