"""Gradient caching for batches whose graph does not fit in memory."""

from coterie.gradcache.batch import UNCOUPLED, MicroBatched, batch_loss
from coterie.gradcache.cached import Rows, Segment, Terms, cached_loss

__all__ = ["UNCOUPLED", "MicroBatched", "Rows", "Segment", "Terms", "batch_loss", "cached_loss"]
