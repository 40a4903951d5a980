"""Methods and data modules are those that were installed with the engine.

`python -m` puts the current folder first on the path. A folder `modules` in it would otherwise take
the place of Coterie's own.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

BESIDE = ("modules", "datamodules")
"""The packages that are installed with the engine."""
SHIPPED = ("coterie", *BESIDE)
"""The engine and those packages, which any stored config may name."""

_ENGINE = Path(__file__).resolve().parent
_HOMES = [str(_ENGINE.parent), str(_ENGINE.parent.parent)]
"""Where they lie: beside the engine in a wheel, one folder above in the source tree."""


class ShippedFinder(MetaPathFinder):
    """Finds Coterie's own packages before any others of the same names."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The package's place beside the engine; None for other packages."""
        return PathFinder.find_spec(name, _HOMES) if name in BESIDE else None


def is_foreign(name: str) -> bool:
    """Whether another package than Coterie's has been imported under this name."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is not None and str(Path(file).resolve().parent.parent) not in _HOMES


def install() -> None:
    """Let Coterie's own packages win in this process."""
    if not any(isinstance(finder, ShippedFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, ShippedFinder())
