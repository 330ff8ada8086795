"""Full disks, folders that may not be written, files that may not be read, clocks that are set back.

A run that meets one of them ends with one sentence, an ``OSError`` that names what could not be written or read, and
once the fault is gone it goes on to the end of a run without it.
"""

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.campaign import kill
from tests.campaign.runs import ERROR, RUNS
from tests.campaign.trials import BadError, Part

_KINDS = [kind for kind in RUNS if kind not in ("eight devices", "own step")]
_OF_PERMISSION = ("read-only folder", "file without permission")
_FAULTS = ("full disk", *_OF_PERMISSION, "clock set back")
# Of linux/capability.h: version 3, and CAP_DAC_OVERRIDE with CAP_DAC_READ_SEARCH.
_CAPABILITY_VERSION, _READ_AND_WRITE_ALL = 0x20080522, 0b110
_DAY = 86_400.0


def full_disk(least: int) -> None:
    """No file may become larger, which is the nearest to a full disk that needs no disk."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):  # what a run prints goes to a file, and would meet the limit too
        os.dup2(nowhere, number)
    resource.setrlimit(resource.RLIMIT_FSIZE, (least, resource.RLIM_INFINITY))


def no_privileges() -> None:
    """The administrator may read and write everything, by two capabilities that a process can give up."""
    if os.getuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    for call in (libc.capget, libc.capset):
        if call(header, sets):
            raise OSError(ctypes.get_errno(), "cannot give up the capabilities of the administrator")
        sets[0] &= ~_READ_AND_WRITE_ALL


def clock_set_back(seconds: float) -> None:
    """What was written before the run is of the future."""
    now = time.time
    time.time = lambda: now() - seconds


def _half(rng: np.random.Generator, kind: str, folder: Path) -> None:
    """A run that was killed after some time."""
    process = kill.start(kind, folder)
    kill.wait_for(process, folder, "metrics.jsonl")
    process.join(float(rng.uniform(0, kill.whole(kind).after_first)))
    process.kill()
    process.join()


def _all(folder: Path) -> list[Path]:
    return [folder, *sorted(folder.rglob("*"))]


def _permit(mode: int, paths: list[Path]) -> None:
    for path in paths:
        path.chmod(mode if path.is_dir() else mode & 0o666)


def trial(
    rng: np.random.Generator, folder: Path, kinds: Sequence[str] = _KINDS, faults: Sequence[str] = _FAULTS
) -> str:
    """One run that meets a fault, and goes on without it."""
    kind = kinds[int(rng.integers(0, len(kinds)))]
    what = faults[int(rng.integers(0, len(faults)))]
    if what in _OF_PERMISSION and os.getuid() == 0 and not sys.platform.startswith("linux"):
        return f"left out, as this administrator may write everywhere: {what}"
    if rng.random() < 0.5 or what == "file without permission":
        _half(rng, kind, folder)
    before = {path: path.stat().st_mode for path in _all(folder)}
    fault: Callable[[], Any]
    if what == "full disk":
        fault = partial(full_disk, int(2 ** rng.uniform(6, 17)))
    elif what == "clock set back":
        fault = partial(clock_set_back, float(rng.uniform(1, 400)) * _DAY)
    else:
        fault = no_privileges
        _permit(0o777 if what == "file without permission" else 0o555, list(before))
        (folder / kill.LOG).touch()
        (folder / kill.LOG).chmod(0o666)
        if what == "file without permission":
            files = [path for path in before if path.is_file() and path.name != kill.LOG]
            if files:
                files[int(rng.integers(0, len(files)))].chmod(0)
    process = kill.start(kind, folder, None, fault)
    process.join()
    _look(f"{kind}, {what}", folder, process.exitcode, must_end=what == "clock set back")
    for path in _all(folder):
        path.chmod(before.get(path, 0o777 if path.is_dir() else 0o666))
    kill.finish(kind, folder, 0)
    return what


def _look(what: str, folder: Path, status: int | None, *, must_end: bool) -> None:
    """Raises BadError unless the run has ended, or has said in a sentence what is wrong."""
    if status == 0:
        return
    text = (folder / ERROR).read_text() if (folder / ERROR).exists() else ""
    if must_end or not text:
        raise BadError(f"{what}: it ended with status {status}\n{kill.log(folder)}")
    name, is_os_error, message = json.loads(text)
    if not is_os_error or str(folder) not in message or message.count("\n") > 1 or len(message) > 500:
        raise BadError(f"{what}: {name}: {message[:800]}\n{kill.log(folder)}")


PART = Part(trial, 600.0)
