"""Gradient caching, for batches whose graph does not fit in memory."""

from coterie.gradcache.batch import UNCOUPLED, MicroBatched, Views, gradient_cached, through
from coterie.gradcache.cached import Terms

__all__ = ["UNCOUPLED", "MicroBatched", "Terms", "Views", "gradient_cached", "through"]
