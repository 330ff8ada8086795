"""One context of MLIR for many programs: JAX makes a new one for each, which took an eighth of the suite's time."""

import itertools
import threading
from collections.abc import Callable
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
    """Has JAX lower the programs of a thread in one context, and in a new one from time to time."""
    mlir = jax._src.interpreters.mlir
    make: Callable[[], Any] | None = getattr(mlir, "make_ir_context", None)
    if make is None:  # a version of JAX that does it in another way
        return
    mine = _OfThread()

    def shared() -> Any:
        # A program that is lowered while another one is would be written into that one.
        if _in_use(mlir.ir):
            return make()
        if next(mine.used) % _PROGRAMS == 0:
            mine.context = make()
        return mine.context

    mlir.make_ir_context = shared
