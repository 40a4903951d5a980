"""Aggregation: the stages between what a client sends and what the server receives."""
