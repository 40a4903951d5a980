"""Writes checkpoints in a thread beside the training; a failed write does not end the run."""

import errno
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from coterie.checkpoints.checkpoint import STATES, save_checkpoint
from coterie.checkpoints.state_files import StateFiles
from coterie.config.schema import CheckpointConfig
from coterie.errors import StateLostError
from coterie.execution.backend import Backend
from coterie.execution.messages import size_of
from coterie.rounds.state import RunState
from coterie.tracking.paths import make_private

_SPARE = 1 << 20
"""Bytes that must stay free on the disk."""


@dataclass
class CheckpointWriter:
    """Writer of a run's checkpoints.

    A thread writes a snapshot of the state while the next phase runs, which is safe because tensors
    are never changed in place. If a checkpoint cannot be written, the user is warned and the run
    goes on. If the last one cannot be written, it goes to a temporary folder instead.

    Attributes:
        folder: The run's `checkpoints/`.
        backend: Reads clients' states.
        warn: Called with a sentence for the user.
        data: The fingerprint of the run's data.
        seconds: Time spent on writing, most of it beside the training.
    """

    folder: Path
    backend: Backend
    config: Mapping[str, Any]
    policy: CheckpointConfig
    warn: Callable[[str], None]
    data: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    _thread: threading.Thread | None = None
    _problem: str | None = None
    _error: BaseException | None = None
    _states: StateFiles = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._states = StateFiles(self.folder / STATES, self.backend)

    def begin(self, state: RunState, tracking: Mapping[str, int], *, best: bool = False) -> None:
        """Start to write the present state."""
        self.wait()
        work = partial(self._write, state.snapshot(), dict(tracking), best=best)
        self._thread = threading.Thread(target=work, name="checkpoint", daemon=True)
        self._thread.start()

    def finish(self, state: RunState, tracking: Mapping[str, int]) -> None:
        """Write the last checkpoint of a run, and wait until it is complete."""
        self.wait()
        self._write(state, tracking, best=False)
        if self._error is not None:
            raise self._error
        if self._problem is None:
            return
        problem, self._problem = self._problem, None
        folder = Path(tempfile.mkdtemp(prefix="coterie-rescued-")) / "checkpoints"
        try:
            self._save(folder, StateFiles(folder / STATES, self.backend), state, tracking)
        except (OSError, SafetensorError, StateLostError) as error:
            shutil.rmtree(folder.parent, ignore_errors=True)
            self.warn(f"{problem} It could not be saved in {folder} either ({error}).")
            return
        self.warn(
            f"{problem} It was saved in {folder}: make room, move it to {self.folder}, and go on "
            "with resume=true."
        )

    def wait(self) -> None:
        """Wait for the checkpoint that is being written, and warn if it failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error
        if self._problem is not None:
            self.warn(f"{self._problem} The run goes on; the next checkpoint tries again.")
            self._problem = None

    def _write(self, state: RunState, tracking: Mapping[str, int], *, best: bool) -> None:
        started = time.perf_counter()
        try:
            self._check_room(state)
            self._save(self.folder, self._states, state, tracking, best=best)
        except (OSError, SafetensorError, StateLostError) as error:
            reason = getattr(error, "strerror", None) or str(error).rstrip(".")
            self._problem = f"{self.folder}: no checkpoint could be written ({reason})."
        except BaseException as error:  # noqa: BLE001 - `wait` raises it in the run's thread
            self._error = error
        self.seconds += time.perf_counter() - started

    def _save(
        self,
        folder: Path,
        states: StateFiles,
        state: RunState,
        tracking: Mapping[str, int],
        *,
        best: bool = False,
    ) -> None:
        save_checkpoint(
            folder,
            state,
            self.backend,
            tracking=tracking,
            config=self.config,
            data=self.data,
            policy=self.policy,
            states=states,
            best=best,
        )

    def _check_room(self, state: RunState) -> None:
        """Raise an OSError if the disk has too little room for the checkpoint."""
        if not self.folder.parent.is_dir():  # it has been moved, and is not made anew
            raise FileNotFoundError(errno.ENOENT, "the run's folder is gone", str(self.folder))
        make_private(self.folder)
        missing = self._states.missing(self._states.digests(state.states))
        messages = [handle for by in state.peer_messages.values() for handle in by.values()]
        needed = (
            sum(size_of(tensors) for tensors in state.server.slots.values())
            + sum(self.backend.fetch(message).nbytes for message in messages)
            + self._states.size(missing)
        )
        free = shutil.disk_usage(self.folder).free
        if free < needed + _SPARE:
            wanted = (needed + _SPARE) / 2**20
            mebibytes = f"{wanted:.1f} MiB are needed, {free / 2**20:.1f} MiB are free"
            raise OSError(f"{mebibytes}; make room there")
