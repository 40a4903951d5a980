"""Ctrl-C and SIGTERM ask the run to stop; a second one ends the process at once."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from coterie.errors import InterruptedRunError

_EXIT_CODE = 130


class Interrupts:
    """Handles SIGINT and SIGTERM within a `with` block, in the main thread only.

    The handler sets a flag and `check` raises where it is safe; a handler that raised could do so
    in the middle of a checkpoint.
    """

    def __init__(self) -> None:
        self._signal: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self, outcome: str = "the run stopped after its last full phase") -> None:
        """Raise an InterruptedRunError with this outcome if a signal came."""
        if self._signal is not None:
            raise InterruptedRunError(f"{self._signal} came; {outcome}.")

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None:
            os._exit(_EXIT_CODE)
        self._signal = signal.Signals(number).name
