"""Signals that ask a run to stop: it finishes its step, writes, and says how to go on."""

import signal
import threading
from types import FrameType
from typing import Any

_ASKING = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop (Ctrl-C, SIGTERM) and has written all it needs to go on."""


class Signals:
    """Within ``with``, the first Ctrl-C or SIGTERM is only noted; a second one of its kind acts as usual.

    Attributes:
        asked: the first signal's name.
        obeyed: set it where the signal was acted on; else it is sent again at the end.
    """

    def __init__(self) -> None:
        self.asked: str | None = None
        self.obeyed = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Signals":
        # Python allows handlers in the main thread alone; elsewhere signals are the caller's.
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _ASKING}
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        for number in list(self._before):
            self._restore(number)
        if self.asked is not None and not self.obeyed and error is None:
            # It came too late to stop this run; what follows it must stop all the same.
            signal.raise_signal(signal.Signals[self.asked])

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = self.asked or signal.Signals(number).name
        self._restore(number)

    def _restore(self, number: int) -> None:
        if number in self._before:
            signal.signal(number, self._before.pop(number))
