"""Gradient caching, for batches whose graph does not fit in memory."""

from coterie.gradcache.batch import UNCOUPLED, MicroBatched, Views, gradient_cached, through
from coterie.gradcache.cached import Rows, Segment, Terms, cached_loss

__all__ = [
    "UNCOUPLED",
    "MicroBatched",
    "Rows",
    "Segment",
    "Terms",
    "Views",
    "cached_loss",
    "gradient_cached",
    "through",
]
