"""What one process does with a client's task, and the protocol of the backends that run tasks."""
