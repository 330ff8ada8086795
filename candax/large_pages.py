"""Memory pages of the programs, which count where JAX computes on a CPU."""

import os
import platform
import sys
from pathlib import Path

# glibc then asks for large pages wherever it gets memory. It reads this when a program starts, not later.
_VARIABLE, _TUNABLE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_large_pages() -> None:
    """Starts this program again, as it was called, with large memory pages, where that has to be asked for.

    A step of training on a CPU gets memory for its intermediate arrays and gives it back, and page by page the first
    touch is slow: with pages of 2 MiB in place of 4 KiB a step of ``candax train`` takes .6 of the time. What
    ``GLIBC_TUNABLES`` says of large pages already is left as it is, and so is a system that gives them to all or to
    none.
    """
    said = os.environ.get(_VARIABLE, "")
    if _TUNABLE in said or sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or not _on_request():
        return
    os.environ[_VARIABLE] = ":".join(filter(None, [said, f"{_TUNABLE}=1"]))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _on_request() -> bool:
    try:
        return "[madvise]" in _LARGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False
