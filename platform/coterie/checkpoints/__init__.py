"""Checkpoints: the state of the whole run on disk, written and read."""
