"""The software and the device that a run depends on."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from coterie.config.schema import RunConfig
from coterie.execution.device import client_device
from coterie.version import __version__

ENVIRONMENT_KEYS = ("version", "python", "platform", "packages")
"""The keys of `environment`."""

_PACKAGES = (
    "torch",
    "lightning",
    "ray",
    "torchvision",
    "kornia",
    "faiss-cpu",
    "faiss-gpu-cu12",
    "scikit-learn",
    "scipy",
    "numpy",
    "pydantic",
    "hydra-core",
    "safetensors",
    "wandb",
)

_CODE = ("platform", "modules", "datamodules", "ray_jobs", "configs")
"""The folders of the source tree whose changes count."""


def environment() -> dict[str, Any]:
    """The versions of Coterie, Python, the platform and the packages."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "version": _version("coterie") or "unknown",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name, version in versions.items() if version},
    }


def _version(package: str) -> str | None:
    """The version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


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
