"""What the processes of one run agree on: whether there is a next batch, of which shape, and whether to stop."""

import zlib
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils


def all_have(item: Any, done: int) -> bool:
    """Whether there is another batch; every process must say the same.

    Raises:
        ValueError: in all processes, where some have a batch and others have none, or their shapes differ.
    """
    if jax.process_count() == 1:
        return item is not None
    shapes = "" if item is None else str(jax.tree.map(lambda leaf: (np.shape(leaf), str(leaf.dtype)), item[0].batch))
    mine = np.array([item is not None, zlib.crc32(shapes.encode())], np.uint32)
    everyone = np.asarray(multihost_utils.process_allgather(mine))
    have = everyone[:, 0] > 0
    if have.any() != have.all():
        raise ValueError(
            f"expected every process to have a batch for step {done}, or none: the processes "
            f"{np.flatnonzero(~have).tolist()} have run out of data. Give all processes equally many batches, or pass "
            "num_steps."
        )
    if len(set(everyone[:, 1].tolist())) > 1:
        raise ValueError(
            f"expected batches of the same shapes in every process, got others at step {done}: here {shapes}."
        )
    return bool(have.all())


def any_asks(asked: str | None) -> str | None:
    """The signal that any process was given."""
    if jax.process_count() == 1:
        return asked
    everyone = np.asarray(multihost_utils.process_allgather(np.array([asked is not None])))
    return (asked or "a signal to another process") if everyone.any() else None
