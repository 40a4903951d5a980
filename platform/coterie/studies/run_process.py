"""The process of a study's run: started, followed by its output, stopped."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_OF_ONE_RUN = frozenset({"WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME"})
"""W&B's variables that name a single run, which the runs of a study must not share."""
_TAIL = 4096
"""Bytes at the end of a log that are searched for its last lines."""


class RunProcess:
    """A process whose output is appended to a log.

    The terminal's signals do not reach it. Its parent passes them on once, so that the run stops
    after a checkpoint; a second signal would end it at once.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
    ) -> None:
        self.log, self._began = log, time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        self._from = log.stat().st_size if log.exists() else 0
        with log.open("ab") as file:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, and no shell
                command,
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={name: v for name, v in environment.items() if name not in _OF_ONE_RUN},
                cwd=folder,
            )

    @property
    def ended(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        """The seconds since the process started."""
        return time.monotonic() - self._began

    @property
    def progress(self) -> str:
        """The line of the last round in its log, or "starting"."""
        lines = self._printed()
        return next((line for line in reversed(lines) if line.startswith("round ")), "starting")

    def wait(self) -> int:
        """Wait for the process to end, and return its exit code."""
        code = self._process.wait()
        self.release()
        return code

    def reason(self, code: int) -> str:
        """Return why the process ended with this code: the signal, or its last printed line."""
        if code < 0:
            found = f"ended by {signal.Signals(-code).name}"
        else:
            found = next(iter(self._printed()[::-1]), f"ended with {code}")
        return f"{found.rstrip('.')} ({self.log})."

    def interrupt(self) -> None:
        """Ask the run to stop after a checkpoint."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def release(self) -> None:
        """Close the run's standard input, so that it stops after a checkpoint."""
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _printed(self) -> list[str]:
        """Return the last lines that the process has printed."""
        with self.log.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._from, end - _TAIL))
            text = log.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]
