"""What processes take: CPU seconds, memory as proportional set size (PSS), Ray's object store."""

import os
import threading
from pathlib import Path

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address

_TICKS = os.sysconf("SC_CLK_TCK")


def descendants(root):
    """The process and all that it started, directly or not."""
    children = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(folder.name)):
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    found, waiting = [], [root]
    while waiting:
        found.append(waiting.pop())
        waiting += children.get(found[-1], [])
    return found


def actors():
    """This process's client actors."""
    own = descendants(os.getpid())
    return [pid for pid in own if _read(pid, "cmdline").startswith("ray::ClientActor")]


def cpu_seconds(pids):
    """User and system time so far, over all processes that still live."""
    stats = [stat for pid in pids if (stat := _stat(pid))]
    return sum(int(stat[11]) + int(stat[12]) for stat in stats) / _TICKS


def pss_mb(pids):
    """Memory in MB, pages that n processes share counted as 1/n; more than these may share them."""
    lines = [line for pid in pids for line in _read(pid, "smaps_rollup").splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def store_mb():
    """MB in the object stores of the cluster that this process is connected to."""
    address = ray.get_runtime_context().gcs_address  # others' Rays may run here
    stats = get_memory_info_reply(get_state_from_address(address)).store_stats
    return float(stats.object_store_bytes_used) / 1e6


def _stat(pid):
    """The fields of /proc/<pid>/stat behind the name, which may hold anything."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _read(pid, name):
    try:
        return (Path("/proc") / str(pid) / name).read_text(errors="replace")
    except OSError:  # it has ended
        return ""


class Peak:
    """Most memory and CPU seconds of a process and its descendants, looked at twice a second."""

    def __init__(self, pid):
        self.mb = self.cpu = 0.0
        self._pid, self._over = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self):
        while not self._over.wait(0.5):
            pids = descendants(self._pid)
            self.mb = max(self.mb, pss_mb(pids))
            self.cpu = max(self.cpu, cpu_seconds(pids))

    def stop(self):
        self._over.set()
        self._thread.join()
