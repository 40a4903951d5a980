"""The process of one run of a study: `coterie train`, stopped when its parent is gone.

The parent holds the other end of this process's standard input and never writes to it. The input
ends with the parent, however that ends. The run then gets SIGTERM and stops after a checkpoint. So
no run goes on without its study, and none holds the folder of a study that is resumed.
"""

import os
import signal
import threading
from types import FrameType

from coterie.commands.program import run_program
from coterie.commands.train import main

_INTERRUPTED = 130


def follow_parent() -> None:
    """Send this process SIGTERM when its standard input ends."""
    threading.Thread(target=_wait, name="parent-watch", daemon=True).start()


def _wait() -> None:
    # Not sys.stdin: its lock would still be held when the interpreter ends.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    """Exit at once; used before the run handles signals, when nothing is trained yet."""
    os._exit(_INTERRUPTED)


if __name__ == "__main__":
    for caught in (signal.SIGINT, signal.SIGTERM):
        signal.signal(caught, _leave)
    follow_parent()
    run_program(main)
