"""Gradient caching for batches whose graph does not fit in memory."""

from coterie.gradcache.batch import UNCOUPLED, MicroBatched, batch_loss
from coterie.gradcache.cached import Part, Rows, Terms, cached_loss

__all__ = ["UNCOUPLED", "MicroBatched", "Part", "Rows", "Terms", "batch_loss", "cached_loss"]
