"""How the programs get memory, which counts where JAX computes on a CPU."""

import os
import platform
import sys
from pathlib import Path

# glibc reads this when a program starts, not later.
_VARIABLE, _LARGE = "GLIBC_TUNABLES", "glibc.malloc.hugetlb"
_LARGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
# Before this version large pages could not be asked for, and of the settings below the first was refused, which makes
# the others do harm.
_GLIBC = (2, 35)
_GIB = 1 << 30
# Freed memory is used again and not returned to the system. There is one heap for all threads, as the others are too
# small for the arrays of a step.
_REUSED = {
    "glibc.malloc.mmap_threshold": _GIB,
    "glibc.malloc.trim_threshold": 2 * _GIB,
    "glibc.malloc.arena_max": 1,
}
# With more processors than this their threads might wait for each other at the one heap; it was measured on two.
_PROCESSORS = 8


def with_reused_memory() -> None:
    """Starts this program again, as it was called, so that it uses freed memory again, in large pages.

    A step of training on a CPU gets memory for its intermediate arrays and gives it back. Left alone, the system then
    clears each page before it is used again, which is .2 of the time of ``candax train``, or .5 with pages of 4 KiB in
    place of 2 MiB. The price is memory that stays taken. What ``GLIBC_TUNABLES`` says of large pages switches all of
    this off; what it or a variable ``MALLOC_...`` says otherwise of memory is left as it is, and then large pages alone
    are asked for. Programs that this one starts inherit the variable.
    """
    said = os.environ.get(_VARIABLE, "")
    library, version = platform.libc_ver()
    if _LARGE in said or sys.platform != "linux" or library != "glibc" or _numbers(version) < _GLIBC:
        return
    decided = "glibc.malloc." in said or any(name.startswith("MALLOC_") for name in os.environ)
    asked = {} if decided or (os.cpu_count() or 1) > _PROCESSORS else dict(_REUSED)
    if _on_request():
        asked[_LARGE] = 1
    if not asked:
        return
    os.environ[_VARIABLE] = ":".join(filter(None, [said, *(f"{name}={value}" for name, value in asked.items())]))
    print(end="", flush=True)  # also where a shell's >&- leaves no standard output
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def _on_request() -> bool:
    try:
        return "[madvise]" in _LARGE_PAGES.read_text(encoding="ascii")
    except OSError:
        return False
