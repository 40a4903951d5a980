"""The processes of Rays on this machine: started as forks, and found from outside."""

import contextlib
import time
from pathlib import Path

import psutil
import ray

from coterie.distributed.fork_server import ForkServer, worker_executable
from coterie.distributed.local_ray import LocalRay


def join(address):
    """Connect to a cluster that lies on this machine; its workers are forks, which import nothing.

    Ray's own workers would import PyTorch and Lightning for seven seconds of CPU each.
    """
    forks = {"py_executable": worker_executable()}
    ray.init(address=address, log_to_driver=False, runtime_env=forks)


def ray_process(kind):
    """The id of the `raylet` or `gcs_server` that this process is connected to."""
    own = ray._private.worker._global_node.all_processes
    if kind in own:
        return own[kind][0].process.pid
    children = psutil.Process(LocalRay.running.process.pid).children()
    return next(child.pid for child in children if child.name() == kind)


def actor_process(name):
    """The id of the process of an actor of this class, once there is one."""
    parents = {ray_process("raylet"), *([ForkServer.running.pid] if ForkServer.running else [])}
    while True:
        for parent in parents:
            for child in psutil.Process(parent).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if f"ray::{name}" in " ".join(child.cmdline()):
                        return child.pid
        time.sleep(0.1)


def left_of(mark, seconds=20):
    """Command lines of the processes with this text in their environment, once nothing ends."""
    ending = time.monotonic() + seconds
    while (left := list(_marked(mark))) and time.monotonic() < ending:
        time.sleep(0.1)
    return left


def _marked(mark):
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in environment.read_bytes():
                yield (environment.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode()
