"""The option `compile`: encoders compiled by TorchInductor."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from lightning import LightningModule
from torch import nn

from coterie.config.given_path import home
from coterie.networks.encoders import Encoder

_ALL = 1 << 20
"""A limit on graphs that no run reaches."""
_PLACE = "TORCHINDUCTOR_CACHE_DIR"
"""Where TorchInductor keeps libraries and pickles that it loads again."""
_OTHERS_WRITE = 0o022


def keep_compiled_private() -> None:
    """Have TorchInductor cache where only this user can write, unless the user has set a folder.

    By default that is a folder of /tmp with a known name, which another user of the machine can
    make first and fill with code.
    """
    if _PLACE not in os.environ or _is_usual(Path(os.environ[_PLACE])):
        os.environ[_PLACE] = str(_own_cache() or _new_folder())


def _is_usual(place: Path) -> bool:
    """Return whether PyTorch has chosen the place itself, as it does when it is imported."""
    usual = Path(tempfile.gettempdir()).absolute()
    return place.parent == usual and place.name.startswith("torchinductor_")


def _own_cache() -> Path | None:
    """Return a folder in the user's cache; None if others may write there, or it cannot be made."""
    if (at_home := home()) is None:
        return None
    folder = at_home / ".cache" / "coterie" / "compiled"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parts = [each.stat() for each in (folder, *folder.parents[:3])]  # up to the home folder
    except OSError:
        return None
    safe = all(at.st_uid == os.getuid() and not at.st_mode & _OTHERS_WRITE for at in parts)
    return folder if safe and os.access(folder, os.W_OK | os.X_OK) else None


def _new_folder() -> Path:
    """Return a new folder, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="coterie_compiled_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def compile_encoders(module: LightningModule, mode: str) -> None:
    """Have each encoder of a module compiled at its first call with each batch shape.

    A graph holds for one shape: one for all shapes would follow the shape that comes first, and
    with it the bits the order of the clients. PyTorch's limit on graphs, beyond which it computes
    uncompiled, is lifted for the same reason.
    """
    import torch._dynamo  # takes seconds, which only a run that compiles pays

    torch._dynamo.config.recompile_limit = _ALL
    torch._dynamo.config.accumulated_recompile_limit = _ALL
    part: nn.Module
    for part in module.modules():
        if isinstance(part, Encoder):
            part.compile(dynamic=False, mode=mode)
