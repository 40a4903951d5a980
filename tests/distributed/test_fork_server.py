"""A local Ray's workers are forks of a fork server, and start as plain ones where there is none."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from coterie.config.schema import ClusterConfig
from coterie.distributed import fork_request
from coterie.distributed.cluster import connect, disconnect
from coterie.distributed.fork_server import ForkServer, worker_executable
from tests.builders.ray_processes import left_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("no_cluster")]


class Process:
    """Tells about the process of the actor."""

    def about(self):
        score = Path("/proc/self/oom_score_adj").read_text()
        return os.getpid(), os.getppid(), os.nice(0), int(score), "coterie.execution.build"

    def has(self, module):
        return module in sys.modules

    def fork(self):
        child = os.fork()
        if child == 0:
            time.sleep(600)
            os._exit(0)
        return child

    def leave(self):
        """Fork a process that leaves the group, the session and its parent."""
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.setsid()
            orphan = os.fork()
            if orphan:
                os.write(writing, str(orphan).encode())
                os._exit(0)
            time.sleep(600)
        os.waitpid(child, 0)
        return int(os.read(reading, 99))

    def draw(self):
        import numpy as np

        return np.random.random()  # noqa: NPY002 - of the process


@pytest.fixture
def ours():
    assert connect(ClusterConfig()) is True
    yield
    disconnect()


def start():
    return ray.remote(num_cpus=0.1)(Process).remote()


def about(actor):
    return ray.get(actor.about.remote(), timeout=180)


def gone(*processes):
    ending = time.monotonic() + 20
    while left := [pid for pid in processes if Path("/proc", str(pid)).exists()]:
        if time.monotonic() > ending:
            return left
        time.sleep(0.05)
    return []


def test_actors_are_forks_that_have_what_they_need(ours):
    one, two = start(), start()
    assert about(one)[1] == about(two)[1] == ForkServer.running.pid
    assert about(one)[0] != about(two)[0]
    for module in ("lightning", "coterie.execution.build", "torch._dynamo"):
        assert ray.get(one.has.remote(module))
    assert ray.get(one.draw.remote()) != ray.get(two.draw.remote())


def test_a_fork_that_ends_is_no_zombie(ours):
    one, two, three = start(), start(), start()
    pids = [about(actor)[0] for actor in (one, two, three)]
    ray.kill(one)
    os.kill(pids[1], signal.SIGKILL)
    assert gone(*pids[:2]) == []
    assert about(three)[0] == pids[2]
    assert about(start())[1] == ForkServer.running.pid


def test_what_a_worker_has_forked_ends_with_it(ours):
    one = start()
    pid, child = about(one)[0], ray.get(one.fork.remote())
    os.kill(pid, signal.SIGKILL)
    assert gone(pid, child) == []
    with pytest.raises(RayActorError):  # whose connections the child has had too
        ray.get(one.about.remote(), timeout=15)


@pytest.mark.parametrize(
    "leaves",
    [
        pytest.param("", marks=pytest.mark.slow),
        "os.fork() and os._exit(0); os.setsid(); os.fork(); ",
    ],
)
def test_what_a_worker_has_forked_and_its_folder_end_with_the_fork_server(tmp_path, leaves):
    """Also what has left the worker's group and session, and has no parent any more."""
    fork_server = ForkServer(forked=False)
    folder = Path(fork_server.executable.split()[-1]).parent
    assert folder.stat().st_mode & 0o077 == 0  # nobody else can reach it
    program, output = tmp_path / "worker.py", tmp_path / "output"
    forks = f"pid = os.fork(); pid or exec({leaves!r}); print(os.getpid(), flush=True)"
    program.write_text(f"import os, time; {forks}; time.sleep(600)")
    assert ask(fork_server, program, output, answered=True) == b"1"
    ending = time.monotonic() + 60
    while output.read_text().count("\n") < 2 + bool(leaves) and time.monotonic() < ending:
        time.sleep(0.05)
    children = sorted(map(int, output.read_text().split()))
    assert all(Path("/proc", str(child)).exists() for child in children)
    fork_server._process.stdin.close()
    fork_server._process.wait(60)
    assert gone(*children) == []
    assert not folder.exists()


def test_an_orphan_that_ends_is_no_zombie(ours):
    one, two = start(), start()
    pid, orphan = about(one)[0], ray.get(one.leave.remote())
    os.kill(pid, signal.SIGKILL)
    assert gone(pid) == []
    assert psutil.Process(orphan).ppid() == ForkServer.running.pid
    os.kill(orphan, signal.SIGKILL)
    ray.kill(two)
    assert gone(orphan) == []


@pytest.mark.slow
def test_without_a_fork_server_workers_start_as_ever(ours):
    forked = start()
    first, parent, *kept = about(forked)
    os.kill(ForkServer.running.pid, signal.SIGKILL)
    while ForkServer.running.alive:
        time.sleep(0.01)
    plain = start()
    assert about(plain)[1] != parent
    assert about(plain)[2:] == tuple(kept)  # niceness, and whom the kernel kills first
    assert about(forked)[0] == first  # who was there goes on


@pytest.mark.slow
def test_further_rays_of_a_process_use_the_same_fork_server(ours):
    assert worker_executable() == worker_executable()
    fork_server = ForkServer.running
    disconnect()
    assert connect(ClusterConfig()) is True
    assert about(start())[1] == fork_server.pid
    assert ForkServer.running is fork_server


FORKS = """
import atexit, os, signal, sys
import lightning
from coterie.config.schema import ClusterConfig
from coterie.distributed.startup import begin_local_ray, share_imports
if sys.argv[1] == "late":
    import ray
if sys.argv[1] == "stopped":
    begin_local_ray(ClusterConfig())
atexit.register(print, "the end of the driver", flush=True)
share_imports(ClusterConfig())
from coterie.distributed.cluster import connect
from coterie.distributed.fork_server import ForkServer
from tests.distributed.test_fork_server import about, start
import ray
forked = ForkServer.running
connect(ClusterConfig())
_, parent, *_ = about(start())
print(forked is ForkServer.running, parent == ForkServer.running.pid, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "stopped":
    os.kill(forked.pid, signal.SIGSTOP)
"""


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("stopped", "True True\nthe end of the driver\n"),
        # `test_local_ray` has drivers that end, in `make test`.
        pytest.param("ends", "True True\nthe end of the driver\n", marks=pytest.mark.slow),
        pytest.param("killed", "True True\n", marks=pytest.mark.slow),
        pytest.param("late", "False True\nthe end of the driver\n", marks=pytest.mark.slow),
    ],
)
def test_a_driver_forks_it_before_it_imports_ray_and_nothing_stays(how, told):
    mark = f"COTERIE_TEST={uuid.uuid4().hex}"
    done = subprocess.run(
        [sys.executable, "-c", FORKS, how],
        env={**os.environ, "COTERIE_TEST": mark.split("=")[1]},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == told, done.stderr
    assert left_of(mark, seconds=30) == []


def ask(fork_server, program, output, *, answered):
    """Send a request as Ray's worker does, and wait for the answer or end at once."""
    request = {
        "arguments": [str(program)],
        "environment": dict(os.environ),
        "folder": str(program.parent),
        "niceness": os.nice(0),
        "out_of_memory": "0",
    }
    with output.open("w") as file, socket.socket(socket.AF_UNIX) as asking:
        asking.connect(fork_server.executable.split()[-1])
        socket.send_fds(asking, [json.dumps(request).encode() + b"\n"], [file.fileno()] * 3)
        return asking.recv(1) if answered else None


def test_what_it_imports_leaves_ray_out(tmp_path):
    worker_executable()
    program, output = tmp_path / "worker.py", tmp_path / "output"
    program.write_text("import sys; print('ray' in sys.modules, 'lightning' in sys.modules)")
    assert ask(ForkServer.running, program, output, answered=True) == b"1"
    ending = time.monotonic() + 60
    while not output.read_text() and time.monotonic() < ending:
        time.sleep(0.05)
    assert output.read_text() == "False True\n"


def test_a_request_that_ends_early_makes_no_worker():
    address = worker_executable().split()[-1]
    with socket.socket(socket.AF_UNIX) as asking:
        asking.connect(address)
        asking.sendall(b'{"arguments": [')
    with socket.socket(socket.AF_UNIX) as asking:  # whole, but without streams
        asking.connect(address)
        asking.sendall(json.dumps({"arguments": ["x"]}).encode() + b"\n")
        assert asking.recv(1) == b""
    assert ForkServer.running.alive


def test_an_answer_that_comes_early_counts(tmp_path, monkeypatch):
    def answer():
        asking, _ = listener.accept()
        with asking:
            asking.recv(1 << 16)
            asking.send(b"1")

    def slowly(*arguments):
        sent = send_fds(*arguments)
        answering.join(10)
        return sent

    send_fds = socket.send_fds
    monkeypatch.setattr(socket, "send_fds", slowly)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        answering = threading.Thread(target=answer)
        answering.start()
        assert fork_request._forked(str(tmp_path / "socket"), b"{}\n")


def test_who_is_silent_keeps_nobody_waiting_for_long():
    address = worker_executable().split()[-1]
    with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as asking:
        silent.connect(address)
        asking.settimeout(60)
        asking.connect(address)
        asking.sendall(b"{}\n")
        assert asking.recv(1) == b""
    assert ForkServer.running.alive


def test_a_fork_server_that_was_stopped_is_asked_in_vain_and_workers_start(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_request, "_PATIENCE_S", 0.2)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        listener.listen()
        assert not fork_request._forked(str(tmp_path / "socket"), b"{}\n")


def test_another_users_request_is_not_heard():
    from coterie.distributed import fork_server_process

    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert fork_server_process._is_ours(ours)
        assert not fork_server_process._is_ours(ours, os.getuid() + 1)


@pytest.mark.slow
def test_who_asks_and_ends_at_once_ends_only_its_own_worker(tmp_path):
    fork_server = ForkServer(forked=False)
    program = tmp_path / "worker.py"
    program.write_text("import time; time.sleep(60)")
    ask(fork_server, program, tmp_path / "output", answered=False)
    with socket.socket(socket.AF_UNIX) as asking:  # answered, so the one before is over
        asking.connect(fork_server.executable.split()[-1])
        asking.sendall(b"{}\n")
        assert asking.recv(1) == b""
    assert fork_server.alive
    assert gone(*(child.pid for child in psutil.Process(fork_server.pid).children())) == []
    fork_server._process.stdin.close()
    fork_server._process.wait(60)
