"""Where a result comes from: the code's commit, the device, and a digest of the config."""

import json
import subprocess
from hashlib import blake2b
from pathlib import Path

import torch

from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig
from coterie.execution.device import client_device
from coterie.version import __version__

_ELSEWHERE = ("run_dir", "resume", "tracking", "checkpoint", "faults", "cluster", "accelerator")
"""Sections and keys of a config that say where and how it runs, not what."""
_CODE = ("platform", "modules", "datamodules", "ray_jobs", "configs")
"""The folders whose changes count."""


def commit() -> str:
    """The commit of the code's source tree; without one, Coterie's version."""
    try:
        name = _git("describe", "--always", "--abbrev=10", "--exclude=*")
        # From the root of the tree; the results themselves change nothing that is run.
        changed = _git("status", "--porcelain", "--", *(f":/{folder}" for folder in _CODE))
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{name}-dirty" if changed else name


def _git(*arguments: str) -> str:
    here = Path(__file__).resolve().parent
    command = ("git", *arguments)
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()


def device_name(config: RunConfig) -> str:
    """What a run's clients compute on: the GPU, or the processor and its threads."""
    if client_device(config).type == "cuda":
        return torch.cuda.get_device_name(0)
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text(encoding="utf-8").splitlines() if cpu.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names) or 1} cores of {names[0] if names else 'an unnamed processor'}"


def config_digest(config: RunConfig) -> str:
    """A digest of all keys that decide a run's numbers."""
    values = {name: v for name, v in dump_config(config).items() if name not in _ELSEWHERE}
    for section, place in (
        ("data", "root"),
        ("encoder", "path"),
    ):  # a digest stands beside the path
        values[section] = {name: v for name, v in values[section].items() if name != place}
    text = json.dumps(values, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()
