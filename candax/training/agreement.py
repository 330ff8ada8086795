"""What the processes of one run agree on: the next batch, what is measured, when to stop, and whose the folder is."""

import contextlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from filelock import FileLock, Timeout
from jax.experimental import multihost_utils

_NONE, _BATCH, _ERROR = 0, 1, 2
_STOPS = (None, "callback", "patience")


def check_batch(item: Any, done: int) -> None:
    """Raises ValueError in all processes where some have a batch and others have none, or their shapes differ.

    ``item`` is the batch of a call, None where there are no more, or the exception that making the batch raised.
    """
    kind = _NONE if item is None else _ERROR if isinstance(item, Exception) else _BATCH
    shapes = (
        str(jax.tree.map(lambda leaf: (np.shape(leaf), str(leaf.dtype)), item[0][0].batch)) if kind == _BATCH else ""
    )
    kinds, sums = _gathered([kind, zlib.crc32(shapes.encode())]).T
    if (kinds == _ERROR).any() and kind != _ERROR:
        raise ValueError(
            f"the batch of step {done} failed in the processes {np.flatnonzero(kinds == _ERROR).tolist()}."
        )
    if kind != _ERROR and len(set(kinds.tolist())) > 1:
        raise ValueError(
            f"expected every process to have a batch for step {done}, or none: the processes "
            f"{np.flatnonzero(kinds == _NONE).tolist()} have run out of data. Give all processes equally many batches, "
            "or pass num_steps."
        )
    if kind == _BATCH and len(set(sums.tolist())) > 1:
        raise ValueError(
            f"expected batches of the same shapes in every process, got others at step {done}: here {shapes}."
        )


def all_stop(stopped: str | None, asked: str | None, failed: Exception | None) -> tuple[str | None, str | None]:
    """Why any process stops, and the signal that any was sent; a failure in one raises an error in all."""
    if jax.process_count() > 1:
        flags = _gathered([_STOPS.index(stopped), asked is not None, failed is not None]).max(axis=0)
        stopped = _STOPS[int(flags[0])]
        asked = (asked or "a signal to another process") if flags[1] else None
        if flags[2] and failed is None:
            raise RuntimeError("the callback raised an error in another process.")
    if failed is not None:
        raise failed
    return stopped, asked


def of_first(found: dict[str, float]) -> dict[str, float]:
    """The numbers that the first process has measured, for all processes: all must come to the same decisions."""
    if jax.process_count() == 1:
        return found
    numbers = multihost_utils.broadcast_one_to_all(np.array(list(found.values()), np.float32))
    return dict(zip(found, np.asarray(numbers).tolist(), strict=True))


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Holds a lock in the folder of a run, in the first of its processes, where the file system has locks.

    Raises:
        ValueError: if another run holds it, in all processes; if there is a file in the folder's place.
    """
    lock, taken = FileLock(path), False
    if jax.process_index() == 0:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire(timeout=0)
        except (FileExistsError, NotADirectoryError) as error:
            kind = "a link that leads nowhere" if path.parent.is_symlink() and not path.parent.exists() else "the file"
            raise ValueError(f"expected a folder to write to, got {kind} {path.parent}.") from error
        except Timeout:
            taken = True
        except NotImplementedError:
            pass
    if of_first({"taken": float(taken)})["taken"]:
        raise ValueError(
            f"expected no other run to write to {path.parent}, but one does so now. Wait until it has ended, or choose "
            "another folder."
        )
    try:
        yield
    finally:
        lock.release()


def _gathered(mine: list[Any]) -> np.ndarray:
    """The numbers of all processes, one row for each."""
    return np.asarray(multihost_utils.process_allgather(np.array(mine, np.uint32)))
