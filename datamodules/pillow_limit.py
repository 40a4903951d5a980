"""Raises Pillow's limit on pixels, which holds for the whole process, while pictures are decoded.

Coterie checks a picture's pixels itself, against `data.max_pixels`. Pillow checks them once more
where it decodes TIFF, goes to a frame or crops: with a warning, and then an error, of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

_lock = threading.Lock()
_limits: list[int] = []
"""The limit that held before, and those that threads ask for now; empty if none does."""


@contextmanager
def pillow_limit(most: int) -> Iterator[None]:
    """Let Pillow decode pictures of `most` pixels, in this thread and in others."""
    if Image.MAX_IMAGE_PIXELS is None:  # the user has no limit
        yield
        return
    with _lock:
        _limits.extend([most] if _limits else [Image.MAX_IMAGE_PIXELS, most])
        Image.MAX_IMAGE_PIXELS = max(_limits)
    try:
        yield
    finally:
        with _lock:
            _limits.remove(most)
            Image.MAX_IMAGE_PIXELS = max(_limits)
            if len(_limits) == 1:
                _limits.clear()
