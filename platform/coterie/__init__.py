"""Coterie learns representations and clusters from unlabelled data spread over many clients."""

import lazy_loader

# Imported on first use, as `__init__.pyi` lists it: the refusal of a config needs no PyTorch.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
