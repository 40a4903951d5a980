"""Resize whole image arrays, once, when a data set is loaded."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Size = int | tuple[int, int]
"""Height and width in pixels; one number for squares."""

_CHUNK = 4096
"""Images resized at a time, to limit the working memory."""


def resize_images(images: NDArray[np.uint8], size: Size) -> NDArray[np.uint8]:
    """Resize uint8 images bilinearly and with antialiasing.

    Args:
        images: (n, channels, height, width), values 0..255.
        size: The new height and width in pixels.

    Returns:
        uint8 (n, channels, *size), contiguous; `images` itself if it has that size.
    """
    wanted = (size, size) if isinstance(size, int) else size
    count, channels, height, width = images.shape
    if (height, width) == wanted:
        return images
    resized = np.empty((count, channels, *wanted), dtype=np.uint8)
    for start in range(0, count, _CHUNK):
        chunk = torch.from_numpy(np.ascontiguousarray(images[start : start + _CHUNK]))
        single = wanted == (1, 1)  # PyTorch 2.15 fails on uint8 colour images here
        chunk = chunk.float() if single else chunk
        small = functional.interpolate(
            chunk, size=wanted, mode="bilinear", antialias=True, align_corners=False
        )
        resized[start : start + _CHUNK] = (small.round() if single else small).numpy()
    return resized
