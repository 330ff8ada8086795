"""The program asks for memory that it keeps, once, and is otherwise as it was called."""

import os
import sys

import pytest

from candax import allocation

KEPT = "glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=2147483648:glibc.malloc.arena_max=1"
LARGE = "glibc.malloc.hugetlb=1"


class Started(Exception):
    """In place of the new program."""


@pytest.fixture
def start(monkeypatch, tmp_path):
    """``with_reused_memory`` on a system of one kind; returns the program that was started, and its environment."""

    def start(
        pages: str = "always [madvise] never",
        said: str | None = None,
        platform: str = "linux",
        version: str = "2.36",
        processors: int = 2,
        malloc: str | None = None,
    ):
        enabled = tmp_path / "enabled"
        enabled.write_text(pages)
        monkeypatch.setattr(allocation, "_LARGE_PAGES", enabled if pages else tmp_path / "missing")
        monkeypatch.setattr(allocation.platform, "libc_ver", lambda: ("glibc", version))
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(os, "cpu_count", lambda: processors)
        if malloc is not None:
            monkeypatch.setenv(malloc, "2")
        monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "candax", "train"])
        if said is None:
            monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        else:
            monkeypatch.setenv("GLIBC_TUNABLES", said)

        def execv(program: str, args: list[str]):
            raise Started(program, args, os.environ["GLIBC_TUNABLES"])

        monkeypatch.setattr(os, "execv", execv)
        allocation.with_reused_memory()

    return start


@pytest.mark.parametrize("said", [None, "glibc.pthread.rseq=1"])
def test_the_same_program_is_started_with_what_was_said_before(start, said, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as a shell's >&- makes it
    with pytest.raises(Started) as started:
        start(said=said)
    program, args, tunables = started.value.args
    assert (program, args) == (sys.executable, [sys.executable, "-X", "dev", "candax", "train"])
    assert tunables == ":".join(filter(None, [said, KEPT, LARGE]))


@pytest.mark.parametrize("pages", ["[always] madvise never", "always madvise [never]", ""])
def test_large_pages_are_asked_for_only_where_that_has_an_effect(start, pages):
    with pytest.raises(Started) as started:
        start(pages=pages)
    assert started.value.args[-1] == KEPT


@pytest.mark.parametrize(
    "system", [{"said": "glibc.malloc.check=1"}, {"malloc": "MALLOC_ARENA_MAX"}, {"processors": 64}]
)
def test_large_pages_alone_where_memory_was_spoken_of_or_one_heap_is_for_too_many(start, system):
    with pytest.raises(Started) as started:
        start(**system)
    assert started.value.args[-1] == ":".join(filter(None, [system.get("said"), LARGE]))


@pytest.mark.parametrize(
    "system",
    [{"said": LARGE}, {"said": "glibc.malloc.hugetlb=0"}, {"said": f"{KEPT}:{LARGE}"}, {"said": KEPT, "pages": ""},
     {"platform": "darwin"}, {"version": "2.34"}, {"processors": 64, "pages": ""}],
)  # fmt: skip
def test_nothing_is_started_where_it_was_said_or_has_no_effect(start, system):
    start(**system)
