"""Joins a running Ray cluster or starts a local one."""

import json
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


def own_resources(config: ClusterConfig, name: str) -> dict[str, float]:
    """What a client takes of the resource of its own name; nothing if it may run anywhere."""
    return {name: config.client_resources[name]} if name in config.client_resources else {}


def has_own_resources(config: ClusterConfig, name: str) -> bool:
    """Whether a node has what the client takes."""
    return all(
        any(node["Alive"] and node["Resources"].get(resource, 0.0) >= amount
            for node in ray.nodes())
        for resource, amount in own_resources(config, name).items()
    )  # fmt: skip


def without_node(config: ClusterConfig, name: str) -> str:
    """What to do about a client whose data lies on no node that is there."""
    wanted = own_resources(config, name)
    if has_own_resources(config, name):
        return (
            f"cluster.start_timeout_s={config.start_timeout_s:g}: client {name} was not placed in "
            f"time, though a node has {wanted}; look for what else takes it."
        )
    return (
        f"cluster.client_resources: no node has {wanted} for client {name}; start one with "
        f"ray start --resources='{json.dumps(wanted)}'."
    )
