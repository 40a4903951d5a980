"""Coterie learns representations and clusters from unlabelled data spread over many clients."""

from typing import TYPE_CHECKING, Any

from coterie.version import __version__

if TYPE_CHECKING:
    from coterie.commands.compose import compose
    from coterie.commands.own_module import Federation
    from coterie.config.schema import RunConfig
    from coterie.contract.callback import RunCallback
    from coterie.models.loading import load_model
    from coterie.run.federation import RunResult

__all__ = [
    "Federation",
    "RunCallback",
    "RunConfig",
    "RunResult",
    "__version__",
    "compose",
    "load_model",
]

_HOMES = {
    "Federation": "coterie.commands.own_module",
    "RunResult": "coterie.run.federation",
    "RunCallback": "coterie.contract.callback",
    "RunConfig": "coterie.config.schema",
    "compose": "coterie.commands.compose",
    "load_model": "coterie.models.loading",
}


def __getattr__(name: str) -> Any:
    # Imported on first use: `--help` and the refusal of a config need no PyTorch.
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
