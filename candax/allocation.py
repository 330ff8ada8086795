"""How the programs get memory, which counts where JAX computes on a CPU."""

import os
import platform
import sys
from pathlib import Path

# glibc reads this when a program starts, not later.
_VARIABLE = "GLIBC_TUNABLES"
_GIB = 1 << 30
# Intermediate arrays come from the heap, which keeps them for the next step. There is one heap for all threads: the
# others are too small for such arrays.
_REUSED = {
    "glibc.malloc.mmap_threshold": _GIB,
    "glibc.malloc.trim_threshold": 2 * _GIB,
    "glibc.malloc.arena_max": 1,
}
# Where pages of 2 MiB have to be asked for.
_LARGE = {"glibc.malloc.hugetlb": 1}
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def with_reused_memory() -> None:
    """Starts this program again, as it was called, so that it keeps memory for what comes next, in large pages.

    A step of training on a CPU gets memory for its intermediate arrays and gives it back. Left alone, the system then
    clears each page before it is used again, .2 of the time of ``candax train``; with pages of 4 KiB in place of 2 MiB
    that takes more than twice as long. The price is memory that stays taken. What ``GLIBC_TUNABLES`` says of ``malloc``
    already is left as it is.
    """
    said = os.environ.get(_VARIABLE, "")
    if "glibc.malloc." in said or sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        return
    asked = _REUSED | (_LARGE if _on_request() else {})
    os.environ[_VARIABLE] = ":".join(filter(None, [said, *(f"{name}={value}" for name, value in asked.items())]))
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _on_request() -> bool:
    try:
        return "[madvise]" in _LARGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False
