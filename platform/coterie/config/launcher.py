"""Hides launchers' variables (srun, torchrun, jsrun), because a run is a single program."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLES = (
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "GROUP_RANK",
    "WORLD_SIZE",
    "SLURM_PROCID",
    "JSM_NAMESPACE_RANK",
)
"""Lightning reads them, at its import too: with another rank than 0 its loggers write nothing."""


@contextmanager
def launcher_hidden() -> Iterator[None]:
    """Hide the variables of launchers from Lightning and new processes within the context."""
    hidden = {name: os.environ.pop(name) for name in _VARIABLES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)
