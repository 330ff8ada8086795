import bz2
import gzip
import lzma
import os
import sys

import pytest

from candax import data
from candax.data import streams
from candax.data.xml_repository import read_examples
from candax.files import replacing


def test_what_unpacks_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "MOST_BYTES", 1000)
    for ending, module in ((".gz", gzip), (".bz2", bz2), (".xz", lzma)):
        path = tmp_path / f"bomb.txt{ending}"
        path.write_bytes(module.compress(b"a b\n" * 100_000))
        for read in (data.graph, lambda path: data.text_words([path]), lambda path: data.text_corpus([path])):
            with pytest.raises(ValueError, match=rf"bomb\.txt\{ending}.* expected it to unpack to at most"):
                read(path)
        path.write_bytes(module.compress(b"".join(f"{i} {i * 7919}\n".encode() for i in range(5000))))
        assert len(list(streams.read_lines(path))) == 5000


def test_lines_beyond_the_limit_are_refused_before_they_are_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(streams, "LONGEST_LINE", 100)
    path = tmp_path / "long.txt"
    path.write_bytes(b"1 5 3\n0 1:1" + b" " * 200 + b"\n")
    monkeypatch.setattr(sys.modules["candax.data.xml_repository"], "_CHUNK_BYTES", 50)
    with pytest.raises(ValueError, match=r"long\.txt:2: expected lines of at most 100 bytes"):
        read_examples(path)
    for read in (data.graph, lambda path: data.text_corpus([path])):
        with pytest.raises(ValueError, match=r"long\.txt:\d: expected"):
            read(path)


def test_a_header_that_promises_more_than_the_file_can_hold_is_refused_at_once(tmp_path):
    for name, pack in (("x.txt", bytes), ("x.txt.gz", gzip.compress)):
        (tmp_path / name).write_bytes(pack(b"1000000000000000 5 3\n0 1:1\n"))
        with pytest.raises(ValueError, match=r":1: expected a header of at most as many examples"):
            read_examples(tmp_path / name)


def test_links_stay_and_what_they_lead_to_is_replaced(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "dangling").symlink_to("new")
    for name, real in (("link", "real"), ("dangling", "new")):
        with replacing(tmp_path / name) as file:
            file.write(b"text")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / real).read_bytes() == b"text"
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="a system without named pipes")
def test_pipes_stay_pipes(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with replacing(tmp_path / "pipe") as file:
        file.write(b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
