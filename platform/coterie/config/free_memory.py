"""The memory that this process may still take, of the machine, its container and its own limit."""

import os
import resource
from pathlib import Path

_KEPT = 0.1
"""Share of the memory that is left to other processes."""
_MEMINFO, _STATM = Path("/proc/meminfo"), Path("/proc/self/statm")
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Files with a container's limit and what it uses, of both versions of control groups."""


def free_memory() -> int:
    """Return the bytes that this process may take if a share is left to other processes."""
    return int(unclaimed_memory() * (1 - _KEPT))


def unclaimed_memory() -> int:
    """Return the bytes that machine, container and this process's own limit leave.

    On unknown systems the machine leaves its whole memory.
    """
    free = [_available(), _own_limit(), *(_left(limit, used) for limit, used in _LIMITS)]
    return min(bytes_ for bytes_ in free if bytes_ is not None)


def _available() -> int:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024


def _own_limit() -> int | None:
    """Return what the limit on this process's address space leaves; None without one."""
    allowed = resource.getrlimit(resource.RLIMIT_AS)[0]
    if allowed == resource.RLIM_INFINITY:
        return None
    try:
        pages = int(_STATM.read_text(encoding="ascii").split()[0])
    except OSError:  # not Linux
        return None
    return max(0, allowed - pages * resource.getpagesize())


def _left(limit: Path, used: Path) -> int | None:
    """Return what a limit leaves; cached files count as used, but can be dropped."""
    try:
        return max(0, int(limit.read_text(encoding="ascii")) - int(used.read_text("ascii")))
    except (OSError, ValueError):  # there is none, or "max"
        return None
