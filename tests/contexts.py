"""One context of MLIR for many programs: JAX 0.10 makes one for each, which took an eighth of the suite's time."""

import importlib.metadata
import itertools
import threading
from typing import Any

import jax

# What programs leave in a context, such as their constants, stays there as long as the context lives.
_PROGRAMS = 200


class _OfThread(threading.local):
    """The context of a thread: contexts are not made for use by several at a time."""

    def __init__(self) -> None:
        self.used = itertools.count()
        self.context: Any = None


def _in_use(ir: Any) -> bool:
    try:
        return ir.Context.current is not None
    except ValueError:
        return False


def share_contexts() -> None:
    """Has JAX lower the programs of a thread in one context, and in a new one from time to time, as JAX 0.11 does."""
    if not importlib.metadata.version("jax").startswith("0.10."):
        return
    mlir = jax._src.interpreters.mlir
    make, mine = mlir.make_ir_context, _OfThread()

    def shared() -> Any:
        # A program that is lowered while another one is would be written into that one.
        if _in_use(mlir.ir):
            return make()
        if next(mine.used) % _PROGRAMS == 0:
            mine.context = make()
        return mine.context

    mlir.make_ir_context = shared
