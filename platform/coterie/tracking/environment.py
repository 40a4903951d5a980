"""The software that a run depends on."""

import platform
from importlib import metadata
from typing import Any

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
