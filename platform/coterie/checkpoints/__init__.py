"""Checkpoints: the state of the whole run on disk, and back."""
