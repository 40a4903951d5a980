"""One run of a comparison: `ray_jobs.train` in a process that ends when its parent is gone.

The parent holds the other end of this process's standard input and never writes to it. It ends
with the parent, whatever ends that, and then this run is asked to stop as by `kill`: after a
checkpoint. So no run goes on unwatched, and none stands in the way of a comparison that is resumed.
"""

import os
import signal
import threading
from types import FrameType

from coterie.commands.program import run_program
from coterie.commands.train import main

_INTERRUPTED = 130


def follow_parent() -> None:
    """Ask this process to stop once its standard input has ended."""
    threading.Thread(target=_wait, name="parent-watch", daemon=True).start()


def _wait() -> None:
    # Not sys.stdin, whose lock would be held when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    """Before the run catches signals itself: nothing has been trained yet."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    for caught in (signal.SIGINT, signal.SIGTERM):
        signal.signal(caught, _leave)
    follow_parent()
    run_program(main)
