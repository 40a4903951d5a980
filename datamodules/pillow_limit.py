"""Raises Pillow's limit on pixels, which holds for the whole process, while pictures are decoded.

Coterie checks a picture's pixels itself, against `data.max_pixels`. Pillow checks them once more
where it decodes TIFF, goes to a frame or crops: with a warning, and then an error, of its own.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image


class _Raised:
    """The limits that threads ask for now, and the one that held before the first of them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked: list[int] = []
        self.before: int | None = None

    def enter(self, most: int) -> None:
        with self.lock:
            if not self.asked:
                self.before = Image.MAX_IMAGE_PIXELS
            self.asked.append(most)
            self._set()

    def leave(self, most: int) -> None:
        with self.lock:
            self.asked.remove(most)
            self._set()

    def _set(self) -> None:
        if self.before is not None:  # the user has no limit
            Image.MAX_IMAGE_PIXELS = max([self.before, *self.asked])


_raised = _Raised()


@contextmanager
def pillow_limit(most: int) -> Iterator[None]:
    """Let Pillow decode pictures of `most` pixels, in this thread and in others."""
    _raised.enter(most)
    try:
        yield
    finally:
        _raised.leave(most)
