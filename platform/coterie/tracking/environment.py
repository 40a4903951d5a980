"""The software that a run depends on."""

import platform
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

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
    """Return the versions of Coterie, Python, the platform and the packages."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "version": _version("coterie") or "unknown",
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: version for name, version in versions.items() if version},
    }


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def commit(source: Path = Path(__file__)) -> str:
    """Return the commit of the source tree, or else Coterie's version.

    Git is asked once: a process goes on with the code that it has loaded.

    Args:
        source: A file of the code. One that its folder's repository does not track, such as that of
            an installed package, has no commit.
    """
    try:
        _git(source, "ls-files", "--error-unmatch", source.name)
        name = _git(source, "describe", "--always", "--abbrev=10", "--exclude=*")
        # From the root of the tree; the results themselves change nothing that is run.
        folders = (f":/{folder}" for folder in _CODE)
        changed = _git(source, "status", "--porcelain", "--", *folders)
    except (OSError, subprocess.CalledProcessError):
        return __version__
    return f"{name}-dirty" if changed else name


def _git(source: Path, *arguments: str) -> str:
    command, here = ("git", *arguments), source.resolve().parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, check=True)  # noqa: S603
    return done.stdout.strip()
