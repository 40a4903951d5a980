"""Saved models, how to load them, and assignments of new samples."""
