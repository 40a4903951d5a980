"""Everything that imports Ray: the cluster, the actors, the backend that uses them."""
