"""What one process does with a client's turn, and the protocol of the backends that run turns."""
