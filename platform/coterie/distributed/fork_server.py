"""The fork server of a local Ray's workers: a process that has imported what actors need.

Ray starts each worker as a new Python, which imports PyTorch and Lightning for some seconds of CPU
and keeps 600 MB. Forked from it, a worker has them at once and shares their memory.
"""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, ClassVar

from coterie.distributed import fork_request
from coterie.distributed.session_folder import SOCKET, new_folder

_PROCESS = "coterie.distributed.fork_server_process"


class ForkServer:
    """The fork server of this process, which ends with this process.

    It has a session of its own, so a Ctrl-C in the terminal does not reach it or Ray's workers.

    Attributes:
        running: The one that was started last.
        executable: What Ray has to call in place of Python, as a shell's words.
    """

    running: ClassVar["ForkServer | None"] = None

    def __init__(self, *, forked: bool) -> None:
        """Start it.

        Args:
            forked: Whether it is a fork of this process; otherwise a new Python.
        """
        # Only this user may look into the folder, so nobody else can ask for a process.
        folder = new_folder()
        address = folder / SOCKET
        self._process: subprocess.Popen[bytes] | None = None
        self._end: IO[Any] | int  # the fork server ends when it is closed
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(address))
                listener.listen(64)  # from now on a request waits until the imports are done
                self.pid = (self._fork if forked else self._spawn)(listener, folder)
        except BaseException:
            shutil.rmtree(folder)
            raise
        words = (sys.executable, "-S", "-E", fork_request.__file__, str(address))
        self.executable = shlex.join(words)

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        if self._process is not None:
            return self._process.poll() is None
        return os.waitpid(self.pid, os.WNOHANG) == (0, 0)

    def _fork(self, listener: socket.socket, folder: Path) -> int:
        from coterie.distributed.fork_server_process import run_fork

        ended, self._end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(self._end)
            run_fork(listener, ended, folder)
        os.close(ended)
        return pid

    def _spawn(self, listener: socket.socket, folder: Path) -> int:
        descriptor = listener.fileno()
        self._process = subprocess.Popen(  # noqa: S603 - this Python
            (sys.executable, "-P", "-m", _PROCESS, str(descriptor), str(folder)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what cannot be imported, an actor tells as well
            pass_fds=(descriptor,),
            start_new_session=True,
        )
        return self._process.pid


def start_fork_server() -> None:
    """Fork the fork server from this process, while that is still possible.

    To be called when this process has imported what an actor needs, and not yet Ray, whose threads
    a fork would not have.
    """
    if _possible() and "ray" not in sys.modules and threading.active_count() == 1:
        ForkServer.running = ForkServer(forked=True)


def worker_executable() -> str | None:
    """Return the program by which a local Ray starts a worker, and start the fork server if needed.

    Returns:
        Words for a shell; None where a process with PyTorch's modules cannot be forked safely.
    """
    if not _possible():
        return None
    if ForkServer.running is None or not ForkServer.running.alive:
        ForkServer.running = ForkServer(forked=False)
    return ForkServer.running.executable


def _possible() -> bool:
    return sys.platform.startswith("linux")
