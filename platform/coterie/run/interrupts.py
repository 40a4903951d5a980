"""Signals that stop the run after a checkpoint, and at once when sent a second time."""

import os
import signal
import threading
from types import FrameType
from typing import Any

from coterie.errors import InterruptedRunError

_EXIT_CODE = 130
_FROM_PEOPLE = (signal.SIGINT, signal.SIGTERM)
_FROM_SYSTEMS = (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
"""Signals of batch systems before a time limit, some sent more than once, and of a closed
terminal."""


class Interrupts:
    """A context that handles signals, in the main thread only.

    SIGHUP and those of batch systems stay ignored if they are, as under nohup, and never end the
    process: they may come again, or before a SIGTERM. The handler sets a flag and `check` raises
    where it is safe; a handler that raised could do so in the middle of a checkpoint.
    """

    def __init__(self) -> None:
        self._signal: str | None = None
        self._impatient = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            ours = [n for n in _FROM_SYSTEMS if signal.getsignal(n) == signal.SIG_DFL]
            for number in (*_FROM_PEOPLE, *ours):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(
        self, outcome: str = "the run stopped after its last full phase; go on with resume=true"
    ) -> None:
        """Raise an InterruptedRunError with this outcome if a signal came."""
        if self._signal is not None:
            raise InterruptedRunError(f"{self._signal} came; {outcome}.")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in _FROM_PEOPLE:
            if self._impatient:
                os._exit(_EXIT_CODE)
            self._impatient = True
        self._signal = self._signal or signal.Signals(number).name
