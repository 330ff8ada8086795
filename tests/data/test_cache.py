import errno
import os
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import platformdirs
import pytest
from data_helpers import random_dataset, same_dataset
from safetensors.numpy import save_file

from candax import files
from candax.data import Dataset, cache
from candax.files import WrongFileError, read_arrays

KEY = {"version": 1, "files": [("a", 2)]}


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("[!.]*")
    return path


def fetch(key: dict = KEY, seed: int = 0) -> tuple[Dataset, bool]:
    """The data set, and whether it was built."""
    built = []

    def build() -> Dataset:
        built.append(True)
        return random_dataset(seed)

    return cache.cached("random", "it", key, build), bool(built)


def test_built_once_and_read_as_it_was(own_cache: Path) -> None:
    first, built = fetch()
    again, built_again = fetch(seed=5)
    assert (built, built_again) == (True, False)
    assert same_dataset(first, again)
    assert again.class_names == tuple("abcdefgh\u00e9")
    assert again.feature_names is None
    again.train.features.data[0] = 7  # what comes from the cache may be written to, like what was built
    only_file(own_cache)


def test_another_key_builds_again_in_the_same_place(own_cache: Path) -> None:
    fetch()
    dataset, built = fetch({**KEY, "version": 2}, seed=5)
    assert built
    assert same_dataset(dataset, random_dataset(5))
    assert not fetch({**KEY, "version": 2})[1]
    only_file(own_cache)


def test_names_and_identities_are_kept_apart(own_cache: Path) -> None:
    for name, identity in (("a", "b"), ("a", "c"), ("d", "b")):
        cache.cached(name, identity, KEY, lambda: random_dataset(0))
    assert len(list(own_cache.glob("[!.]*"))) == 3


def test_no_broken_file_is_ever_used(own_cache: Path) -> None:
    fetch()
    path = only_file(own_cache)
    whole = path.read_bytes()
    unused = 0
    positions = (*range(400), *range(400, len(whole), 17))
    for position in positions:
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        for broken in (whole[:position], bytes(flipped)):
            path.write_bytes(broken)
            try:
                assert cache.read(path, KEY) is None
            except WrongFileError:
                unused += 1
    assert unused > len(positions)
    path.write_bytes(whole + b"\0")
    with pytest.raises(WrongFileError):
        cache.read(path, KEY)


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"garbage", b"{}\n", b"[1]\n", b'{"format": "candax-dataset-1"}\n', b"\x80\x04."]
)
def test_a_broken_file_is_built_again(own_cache: Path, content: bytes) -> None:
    fetch()
    path = only_file(own_cache)
    whole = path.read_bytes()
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, built = fetch()
    assert built
    assert path.read_bytes() == whole


def test_a_broken_file_is_reported(own_cache: Path) -> None:
    fetch()
    path = only_file(own_cache)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.warns(UserWarning, match=r"is broken and is built again: .*random-\w+\.safetensors: "):
        fetch()


def test_objects_are_not_written(own_cache: Path) -> None:
    form = cache.Form(lambda thing: {"text": np.array([thing])}, dict)
    with pytest.raises(ValueError, match=r"expected arrays of numbers, got \['text'\]"):
        cache.write(own_cache / "x", KEY, object(), form)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    save_file({"a": np.arange(3)}, tmp_path / "other.safetensors")
    for name in ("other.npz", "other.safetensors"):
        with pytest.raises(WrongFileError, match=rf"{name}: expected safetensors of the kind 'mine'"):
            read_arrays(tmp_path / name, "mine")


def test_a_write_that_breaks_off_leaves_nothing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch()
    before = only_file(own_cache).read_bytes()

    def interrupt(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch({"version": 2}, seed=9)
    assert only_file(own_cache).read_bytes() == before


def test_what_killed_processes_left_is_ignored_and_removed_later(own_cache: Path) -> None:
    own_cache.mkdir()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = files._HOST
    alive, killed = (own_cache / f".a.{host}.{pid}.1.unfinished" for pid in (os.getpid(), dead.pid))
    old, young = own_cache / "old.unfinished", own_cache / ".a.elsewhere.1.1.unfinished"
    for path in (old, young, alive, killed):
        path.write_bytes(b"half")
    for path in (old, alive):
        os.utime(path, (time.time() - 2 * 86_400,) * 2)
    assert fetch()[1]
    assert not fetch()[1]
    assert [path.exists() for path in (old, young, alive, killed)] == [False, True, True, False]


def test_of_two_that_want_the_same_one_builds_and_the_other_waits(own_cache: Path) -> None:
    built, entered, results = [], threading.Event(), []

    def build() -> Dataset:
        built.append(True)
        entered.set()
        time.sleep(0.3)
        return random_dataset(0)

    def work() -> None:
        results.append(cache.cached("random", "it", KEY, build))

    first = threading.Thread(target=work)
    first.start()
    assert entered.wait(5)
    with pytest.warns(UserWarning, match="another process builds .*random"):
        work()
    first.join()
    assert len(built) == 1
    assert same_dataset(*results)


def test_a_full_disk_is_said_in_one_sentence_and_leaves_no_file(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(arrays: dict, name: str, metadata: dict) -> None:
        Path(name).write_bytes(b"1234567")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("safetensors.numpy.save_file", full)
    with pytest.warns(UserWarning, match=r"random-\w+\.safetensors.*7 bytes of it were written.*CANDAX_CACHE"):
        assert fetch()[1]
    assert not list(own_cache.glob("[!.]*"))
    assert not list(own_cache.glob("*.unfinished"))


@pytest.mark.parametrize("blocked", ["folder is a file", "parent is a file"])
def test_an_unwritable_folder_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blocked: str) -> None:
    obstacle = tmp_path / "obstacle"
    obstacle.write_text("")
    monkeypatch.setenv("CANDAX_CACHE", str(obstacle if blocked == "folder is a file" else obstacle / "cache"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [fetch(seed=3) for _ in range(3)]
    assert all(built and same_dataset(dataset, random_dataset(3)) for dataset, built in results)
    messages = [str(warning.message) for warning in caught]
    assert sum("cannot be written" in message and "CANDAX_CACHE" in message for message in messages) == 1
    assert len(messages) <= 2


def test_writers_and_readers_at_once_see_whole_files_only(own_cache: Path) -> None:
    choices = [random_dataset(seed) for seed in range(3)]
    path = own_cache / "shared"
    cache.write(path, KEY, choices[0])
    failures: list[str] = []
    writing = threading.Event()

    def keep_writing(dataset: Dataset) -> None:
        for _ in range(20):
            cache.write(path, KEY, dataset)

    def keep_reading() -> None:
        while not writing.is_set():
            found = cache.read(path, KEY)
            if found is None or not any(same_dataset(found, choice) for choice in choices):
                failures.append("something else")

    reader = threading.Thread(target=keep_reading)
    writers = [threading.Thread(target=keep_writing, args=(choice,)) for choice in choices]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    writing.set()
    reader.join()
    assert not failures
    only_file(own_cache)


def test_folder_is_the_users_unless_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.cache_folder() == tmp_path / "cache"
    monkeypatch.setenv("CANDAX_CACHE", "~/elsewhere")
    assert cache.cache_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("CANDAX_CACHE")
    assert cache.cache_folder() == Path(platformdirs.user_cache_dir("candax"))
