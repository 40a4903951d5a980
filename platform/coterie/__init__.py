"""Coterie: representations and clusters from unlabelled data spread over many clients."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.config.schema import RunConfig
    from coterie.engine.federation import Federation, RunResult
    from coterie.engine.model_loading import load_model

try:
    __version__ = version("coterie")
except PackageNotFoundError:  # a submitted job runs from the source tree
    __version__ = "0+source"

__all__ = ["Federation", "RunConfig", "RunResult", "__version__", "load_model"]

_HOMES = {
    "Federation": "coterie.engine.federation",
    "RunResult": "coterie.engine.federation",
    "RunConfig": "coterie.config.schema",
    "load_model": "coterie.engine.model_loading",
}


def __getattr__(name: str) -> Any:
    # Loaded when used: PyTorch is not needed to answer `--help` or to refuse a config.
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
