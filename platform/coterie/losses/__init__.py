"""Losses as pure functions of projections and soft assignments.

Axes: n samples, d features, k clusters, m samples of another device. A scalar has no axis.
"""
