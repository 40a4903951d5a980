"""Joins a running Ray cluster or starts a local one."""

import logging
import os

import ray

from coterie.config.schema import ClusterConfig
from coterie.errors import ConfigError, RunError

_logger = logging.getLogger(__name__)


def connect(config: ClusterConfig) -> bool:
    """Connect this process to Ray.

    An address from the config or from RAY_ADDRESS (which a submitted job has) is joined; without
    one, a local cluster of our own is started: `ray.init()` alone would join whatever cluster was
    last started on the machine.

    Returns:
        Whether the connection is ours to end.

    Raises:
        RunError: If there is no cluster at the address.
    """
    if ray.is_initialized():
        return False
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    # With local clusters Ray would overwrite this for every process under the driver.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    try:
        options = {"include_dashboard": False} if address == "local" else {}
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except ConnectionError as error:
        raise RunError(
            f"cluster.address={address}: no Ray cluster answers there; start one or leave it out."
        ) from error
    return True


def slots(config: ClusterConfig) -> int:
    """How many actors the cluster holds at once, by CPUs and GPUs.

    Raises:
        ConfigError: If not even one fits.
    """
    resources = ray.cluster_resources()
    wanted = {"CPU": config.cpus_per_client, "GPU": config.gpus_per_client}
    fits = {k: int(resources.get(k, 0.0) / v + 1e-9) for k, v in wanted.items() if v > 0}
    for kind, count in fits.items():
        if count < 1:
            key = f"cluster.{kind.lower()}s_per_client"
            has = f"{resources.get(kind, 0.0):g}"
            raise ConfigError(
                f"{key}={wanted[kind]:g}: the cluster has {has} {kind}; ask for less or add a node."
            )
    return min(fits.values())


def cluster_has_gpu() -> bool:
    """Whether any node has a GPU."""
    return bool(ray.cluster_resources().get("GPU", 0.0))
