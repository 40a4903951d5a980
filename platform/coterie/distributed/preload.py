"""What Ray's idle workers import ahead of time: all that a client's actor needs."""

import importlib

from coterie.collector import paused_collector

with paused_collector():
    for name in ("lightning", "coterie.distributed.actors"):
        importlib.import_module(name)
