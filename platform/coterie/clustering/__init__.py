"""Clustering of embeddings; the one folder that imports FAISS.

Axes: n samples, d features, k clusters, r coordinates of a projection.
"""
