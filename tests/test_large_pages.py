"""The program asks for large memory pages, once, and is otherwise as it was called."""

import os
import sys

import pytest

from candax import large_pages

TUNABLE = "glibc.malloc.hugetlb=1"


class Started(Exception):
    """In place of the new program."""


@pytest.fixture
def start(monkeypatch, tmp_path):
    """``with_large_pages`` on a system of one kind; returns the program that was started, and its environment."""

    def start(pages: str = "always [madvise] never", said: str | None = None, platform: str = "linux"):
        enabled = tmp_path / "enabled"
        enabled.write_text(pages)
        monkeypatch.setattr(large_pages, "_LARGE_PAGES", enabled if pages else tmp_path / "missing")
        monkeypatch.setattr(large_pages.platform, "libc_ver", lambda: ("glibc", "2.36"))
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(sys, "orig_argv", ["python", "-X", "dev", "candax", "train"])
        if said is None:
            monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
        else:
            monkeypatch.setenv("GLIBC_TUNABLES", said)

        def execv(program: str, args: list[str]):
            raise Started(program, args, os.environ["GLIBC_TUNABLES"])

        monkeypatch.setattr(os, "execv", execv)
        large_pages.with_large_pages()

    return start


@pytest.mark.parametrize("said", [None, "glibc.malloc.check=1"])
def test_the_same_program_is_started_with_what_was_said_before(start, said):
    with pytest.raises(Started) as started:
        start(said=said)
    program, args, tunables = started.value.args
    assert (program, args) == (sys.executable, [sys.executable, "-X", "dev", "candax", "train"])
    assert tunables == (TUNABLE if said is None else f"{said}:{TUNABLE}")


@pytest.mark.parametrize(
    "system",
    [{"said": TUNABLE}, {"said": "glibc.malloc.hugetlb=0"}, {"pages": "[always] madvise never"},
     {"pages": "always madvise [never]"}, {"pages": ""}, {"platform": "darwin"}],
)  # fmt: skip
def test_nothing_is_started_where_it_was_said_or_would_bring_nothing(start, system):
    start(**system)
