"""Standard streams that survive a shell's faults: missing, closed, full, or narrow in encoding."""

import os
import sys
from contextlib import suppress
from typing import Any, TextIO

_STANDARD = (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w"))


def open_missing() -> None:
    """Open the null device in place of missing standard streams.

    After `command >&-` the next file that is opened would be the standard output.
    """
    for name, number, mode in _STANDARD:
        try:
            os.fstat(number)
        except OSError:
            _silence(number)
        if getattr(sys, name) is None:
            stream = open(number, mode, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


class Outlasting:
    """A text stream whose writes never fail, since a run is worth more than its output.

    It replaces what the encoding lacks, and drops all output once the stream refuses any (its
    reader has left, the terminal is closed, the disk is full).
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def encoding(self) -> str:
        """The stream's encoding."""
        return getattr(self._stream, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Return whether the stream is a terminal."""
        with suppress(AttributeError, OSError, ValueError):
            return self._stream.isatty()
        return False

    def write(self, text: str) -> int:
        """Write text, with `?` for what the encoding lacks."""
        try:
            self._stream.write(text)
        except UnicodeEncodeError:
            name = self.encoding
            self.write(text.encode(name, "replace").decode(name))
        except (OSError, ValueError):  # a closed stream raises the second
            self._give_up()
        return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        """Redirect what follows to the null device, also from other writers to the stream."""
        with suppress(AttributeError, OSError, ValueError):  # not every stream has a number
            _silence(self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _silence(number: int) -> None:
    """Redirect the file of this number to the null device."""
    null = os.open(os.devnull, os.O_RDWR)
    if null != number:
        os.dup2(null, number)
        os.close(null)
