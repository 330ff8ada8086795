"""One run at a time writes to a folder."""

from pathlib import Path

import jax
from filelock import BaseFileLock, FileLock, Timeout

from candax.training import agreement


def alone(path: Path) -> BaseFileLock | None:
    """A lock in the folder of a run, which the first of its processes holds; None where the file system has none.

    Raises:
        ValueError: if another run holds it, in all processes.
    """
    lock, taken, possible = FileLock(path), False, True
    if jax.process_index() == 0:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except Timeout:
            taken = True
        except NotImplementedError:
            possible = False
    if agreement.of_first({"taken": float(taken)})["taken"]:
        raise ValueError(
            f"expected no other run to write to {path.parent}, but one does so now. Wait until it has ended, or choose "
            "another folder."
        )
    return lock if possible else None
