"""What one process does with a client's turn."""
