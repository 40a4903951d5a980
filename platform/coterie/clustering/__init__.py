"""Clustering of embeddings; the one folder that imports FAISS."""
