"""Signals that ask a run to stop: it finishes its step, writes, and says how to go on."""

import signal
import threading
from types import FrameType
from typing import Any

_ASKING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop (Ctrl-C, SIGTERM) and has written all it needs to go on."""


class Signals:
    """Within ``with``, the first Ctrl-C or SIGTERM is only noted; a second one acts as usual."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Python allows handlers in the main thread alone; elsewhere signals are the caller's.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _ASKING}
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
