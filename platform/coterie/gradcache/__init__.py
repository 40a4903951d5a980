"""Gradient caching for batches whose graph does not fit in memory."""

from coterie.gradcache.cached import Part, Rows, Terms, cached_loss

__all__ = ["Part", "Rows", "Terms", "cached_loss"]
