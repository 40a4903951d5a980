"""A local Ray in a separate process, which starts while this one imports PyTorch."""

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, ClassVar, NamedTuple

from coterie.distributed.ray_token import keep_token
from coterie.distributed.session_folder import discard
from coterie.distributed.temp_folder import temp_folder
from coterie.errors import RunError

_HEAD = "coterie.distributed.head_process"
_LOOK_S = 0.5
_RAYS = ("raylet", "gcs_server")
_PROCESSES = Path("/proc/self")
_STOPPED = "T"


class _Process(NamedTuple):
    pid: int
    name: str
    state: str
    parent: int


class LocalRay:
    """The local Ray of this process, which ends with this process.

    Its processes have a session of their own, so a Ctrl-C in the terminal does not reach them.

    Attributes:
        running: The one that was started last.
        process: The process that keeps Ray.
        address: Its address; None until `wait` has returned.
    """

    running: ClassVar["LocalRay | None"] = None

    def __init__(self) -> None:
        keep_token()  # this process and Ray's need the same one
        self.process = subprocess.Popen(  # noqa: S603 - this Python
            (sys.executable, "-P", "-m", _HEAD),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={
                "RAY_worker_niceness": "0",  # with Ray's 15, other processes starve the workers
                **os.environ,
                "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
                "RAY_TMPDIR": str(temp_folder()),
                "RAY_gcs_server_port_wait_time_s": "3600",  # `wait` says how long
            },
            start_new_session=True,
        )
        self.address: str | None = None
        self._folder: Path | None = None
        atexit.register(self._end_if_stopped)

    @classmethod
    def begin(cls) -> "LocalRay":
        """Return the local Ray that runs, and start one if there is none."""
        if cls.running is not None and cls.running.ended:
            cls.running.end()  # Ray itself would try for minutes to join it
        if cls.running is None or cls.running.process.poll() is not None:
            cls.running = cls()
        return cls.running

    def wait(self, seconds: float) -> str:
        """Wait until Ray has started.

        Returns:
            Its address.

        Raises:
            RunError: If Ray could not be started, or not in time; then it is ended.
        """
        if self.address is None:
            self.address = self._read(seconds)
        return self.address

    @property
    def killed(self) -> bool:
        """Whether the process that supervises Ray was killed, so that Ray runs without it."""
        return (self.process.poll() or 0) < 0

    @property
    def ended(self) -> str:
        """The name of a process of Ray's that has ended since Ray was ready; "" if none has."""
        if self.address is None or not _PROCESSES.is_dir():
            return ""
        running = {name for _, name, state in self._children() if state != "Z"}
        return next((name for name in _RAYS if name not in running), "")

    def end(self) -> None:
        """End Ray without waiting; if the process that keeps it was killed, end it from here."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        if self.killed:
            self._kill_all()
        if self._folder is not None and self.process.poll() is not None:
            discard(self._folder)
        if LocalRay.running is self:
            LocalRay.running = None

    def end_control(self) -> None:
        """Kill the control process, which is stopped: a disconnect would wait for it."""
        for pid, name, _ in self._children():
            if name == "gcs_server":
                os.kill(pid, signal.SIGKILL)

    def end_stopped(self) -> None:
        """Kill Ray's stopped processes (SIGSTOP): a disconnect would wait for them."""
        for pid, _, state in self._children():
            if state == _STOPPED:
                os.kill(pid, signal.SIGKILL)

    def end_too(self, pid: int) -> None:
        """Have Ray's supervising process kill another process that does not end with this one."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # Ray has ended
            self.process.stdin.write(b"%d\n" % pid)
            self.process.stdin.flush()

    def _read(self, seconds: float) -> str:
        output = self.process.stdout
        assert output is not None
        self._wait_for(output, seconds)
        line = output.readline()
        found = json.loads(line or b'{"error": "start", "reason": "its process was killed"}')
        if "address" in found:
            self._folder = Path(found["folder"])
            return str(found["address"])
        self.end()
        if found["error"] == "folder":
            raise RunError(found["reason"])
        reason = found["reason"].rstrip(".")
        if found["error"] == "authentication":
            raise RunError(
                f"Ray's token cannot be read ({reason}); set RAY_AUTH_TOKEN_PATH to a file with "
                "the cluster's own token, or unset it and RAY_AUTH_MODE."
            )
        raise RunError(
            f"Ray could not be started ({reason}); see ray/session_latest/logs in "
            f"{found.get('folder', 'its folder')}, make room, and start again."
        )

    def _wait_for(self, output: IO[bytes], seconds: float) -> None:
        """Wait for Ray's answer, and check its processes, whose end Ray's start does not notice."""
        ending = time.monotonic() + seconds
        while not select.select([output], [], [], _LOOK_S)[0]:
            if ended := [name for _, name, state in self._children() if state == "Z"]:
                self._kill()
                raise RunError(
                    f"Ray could not be started (its {ended[0]} has ended); make room, and start "
                    "again."
                )
            if time.monotonic() > ending:
                self.end()
                raise RunError(
                    f"cluster.start_timeout_s={seconds:g}: Ray did not start in time; look for "
                    "what else runs here, or raise it."
                )

    def _children(self) -> Iterator[tuple[int, str, str]]:
        """Yield the id, name and state of Ray's own processes; none where there is no /proc."""
        for process in self._processes():
            if process.name in _RAYS and process.parent == self.process.pid:
                yield process.pid, process.name, process.state

    def _processes(self) -> Iterator[_Process]:
        """Yield the processes in Ray's session: the supervising one too, but not the workers."""
        for found in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                name, _, rest = (found / "stat").read_text().partition("(")[2].rpartition(")")
                state, parent, _, session = rest.split()[:4]
                if int(session) == self.process.pid:
                    yield _Process(int(found.name), name, state, int(parent))

    def _kill_all(self) -> None:
        """Kill all of Ray, also agents, whose command lines do not name the folder."""
        for process in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)

    def _kill(self) -> None:
        """End a Ray that is starting; the next start removes its folder."""
        self._kill_all()
        self.process.wait()
        self.end()

    def _end_if_stopped(self) -> None:
        """Kill all of Ray if the process that supervises it is stopped, and so cannot end it."""
        if self.process.poll() is not None:
            return  # another process may have its number
        if any(p.pid == self.process.pid and p.state == _STOPPED for p in self._processes()):
            self._kill()
