"""Where TorchInductor caches what it compiles."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_PLACE = "TORCHINDUCTOR_CACHE_DIR"
"""Where TorchInductor keeps libraries and pickles that it loads again."""
_OTHERS_WRITE = 0o022


def keep_compiled_private() -> None:
    """Have TorchInductor cache where only this user can write, unless the user has set a folder.

    By default that is a folder of /tmp with a known name, which another user of the machine can
    make first and fill with code. PyTorch makes it when it is imported, and cannot be where another
    user has put a file there, so this comes before that.
    """
    if _PLACE not in os.environ or _is_usual(Path(os.environ[_PLACE])):
        os.environ[_PLACE] = str(_own_cache() or _new_folder())


def _is_usual(place: Path) -> bool:
    """Return whether this is PyTorch's default folder, which it sets on import."""
    usual = Path(tempfile.gettempdir()).absolute()
    return place.parent == usual and place.name.startswith("torchinductor_")


def _own_cache() -> Path | None:
    """Return a folder in the user's cache; None if others may write there, or it cannot be made."""
    try:
        folder = Path.home() / ".cache" / "coterie" / "compiled"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parts = [each.stat() for each in (folder, *folder.parents[:3])]  # up to the home folder
    except (OSError, RuntimeError):  # a user without a home folder
        return None
    safe = all(at.st_uid == os.getuid() and not at.st_mode & _OTHERS_WRITE for at in parts)
    return folder if safe and os.access(folder, os.W_OK | os.X_OK) else None


def _new_folder() -> Path:
    """Return a new folder, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="coterie_compiled_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
