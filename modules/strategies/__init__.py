"""Strategies of federated optimisation, one file each, on the hooks of `strategy`."""
