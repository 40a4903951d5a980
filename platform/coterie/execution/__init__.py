"""Runs a client's task in one process, and defines the protocol of backends."""
