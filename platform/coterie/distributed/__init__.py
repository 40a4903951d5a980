"""All code that imports Ray: the cluster, the actors, and the Ray backend."""
