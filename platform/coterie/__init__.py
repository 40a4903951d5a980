"""Coterie learns representations and clusters from unlabelled data spread over many clients."""

from typing import Any

import lazy_loader

from coterie.compiled_folder import keep_compiled_private

keep_compiled_private()

# Imported on first use, as `__init__.pyi` lists it: the refusal of a config needs no PyTorch.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    from coterie.config.launcher import launcher_hidden

    with launcher_hidden():
        return _load(name)
