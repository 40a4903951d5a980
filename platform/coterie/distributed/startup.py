"""Starts a local Ray early, beside the driver's imports, and shares these with its actors.

The driver's imports take some seconds, and so does a local Ray. Neither needs the other, so Ray
starts first, in a process of its own.
"""

from coterie.config.schema import ClusterConfig
from coterie.distributed.fork_server import start_fork_server
from coterie.distributed.local_ray import LocalRay


def begin_local_ray(config: ClusterConfig) -> None:
    """Start the local Ray that the config will need, without waiting for it.

    Without effect if the config names a cluster, or Ray is not used.
    """
    if _local(config):
        LocalRay.begin()


def share_imports(config: ClusterConfig) -> None:
    """Let a local Ray's actors share this process's imports; Ray itself must not be among them."""
    if _local(config):
        start_fork_server()


def _local(config: ClusterConfig) -> bool:
    return config.backend == "ray" and config.join_address == "local"
