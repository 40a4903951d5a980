"""The memory that this process may still take, of the machine or its container's limit."""

import os
from pathlib import Path

_KEPT = 0.1
"""Share of the memory that is left to other processes."""
_MEMINFO = Path("/proc/meminfo")
_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)
"""Files with a container's limit and what it uses, of both versions of control groups."""


def free_memory() -> int:
    """Return the bytes that this process may still take; on unknown systems the whole memory."""
    free = [_available(), *(_left(limit, used) for limit, used in _LIMITS)]
    return int(min(bytes_ for bytes_ in free if bytes_ is not None) * (1 - _KEPT))


def _available() -> int:
    try:
        lines = _MEMINFO.read_text(encoding="ascii").splitlines()
    except OSError:  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    sizes = dict(line.split(":", 1) for line in lines)
    return int(sizes["MemAvailable"].split()[0]) * 1024


def _left(limit: Path, used: Path) -> int | None:
    """Return what a limit leaves; cached files count as used, but can be dropped."""
    try:
        return max(0, int(limit.read_text(encoding="ascii")) - int(used.read_text("ascii")))
    except (OSError, ValueError):  # there is none, or "max"
        return None
