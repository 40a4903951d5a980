"""Joins a running Ray cluster or starts a local one."""

import json
import logging
import os
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import ray

from coterie.config.schema import ClusterConfig
from coterie.distributed.early import EarlyStart
from coterie.errors import ConfigError, RunError

_logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_SYSTEM = {"enable_open_telemetry": False}
"""What exports Ray's own metrics is then OpenCensus, which ends with the connection. OpenTelemetry
leaves a thread behind for each `ray.init`, and they can crash the end of Python (Ray 2.60).
"""


def connect(config: ClusterConfig) -> bool:
    """Connect this process to Ray.

    An address from the config or from RAY_ADDRESS (which a submitted job has) is joined; without
    one, a local cluster of our own is started: `ray.init()` alone would join whatever cluster was
    last started on the machine.

    Returns:
        Whether the connection is ours to end.

    Raises:
        ConfigError: If the address is none, or one of Ray Client.
        RunError: If there is no cluster at the address.
    """
    if EarlyStart.pending is not None:
        return EarlyStart.pending.take()
    return join_or_start(config)


def join_or_start(config: ClusterConfig) -> bool:
    """Do what `connect` says, here and now."""
    if ray.is_initialized():
        return False
    address = config.address or os.environ.get("RAY_ADDRESS") or "local"
    if address not in {"local", "auto"}:
        _check_answers(address)
    # With local clusters Ray would overwrite this for every process under the driver.
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    options = local_options(config) if address == "local" else {}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except ConnectionError as error:
        raise _no_answer(address) from error
    return True


def disconnect() -> None:
    """End the connection, and Ray itself if `join_or_start` started it here.

    Ray's monitor for autoscaling has nothing to do on a local cluster, but does not end when asked:
    Ray would wait a second and kill it then, so it is killed at once.
    """
    if started_here():
        ray._private.worker._global_node.kill_monitor(check_alive=False)
    ray.shutdown()


def started_here() -> bool:
    """Whether this process has started Ray itself: then no other node will join."""
    node = ray._private.worker._global_node
    return node is not None and bool(node.is_head())


def local_options(config: ClusterConfig) -> dict[str, Any]:
    """How to start a local cluster: without a dashboard, and with processes that are ready.

    Ray starts an idle process for each CPU at once, and makes actors of them. Those that bring
    PyTorch and Lightning with them have them imported while the driver still prepares the run. With
    many more CPUs than actors that would be memory for nothing.
    """
    system: dict[str, Any] = dict(_SYSTEM)
    if (os.cpu_count() or 1) <= 2 * (config.num_actors or 2):
        system["preload_python_modules"] = ["coterie.distributed.preload"]
    return {"include_dashboard": False, "_system_config": system}


def _check_answers(address: str) -> None:
    """Raise a RunError if nobody listens at an address: Ray would try again for many minutes."""
    if address.startswith("ray://"):
        raise ConfigError(
            f"cluster.address={address}: Ray Client cannot stream what actors report; start the "
            "command with ray job submit, or on a node of the cluster with cluster.address=auto."
        )
    parts = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or not port:
        raise ConfigError(
            f"cluster.address={address}: it is no address; write it as host:port, or auto."
        )
    # Ray takes a loopback address for the node's own, on which alone it may listen.
    hosts = {host, ray.util.get_node_ip_address()} if host in _LOOPBACK else {host}
    for candidate in sorted(hosts):
        try:
            socket.create_connection((candidate, port), timeout=_ANSWER_S).close()
        except OSError:
            continue
        return
    raise _no_answer(address)


def _no_answer(address: str) -> RunError:
    return RunError(
        f"cluster.address={address}: no Ray cluster answers there; start one or leave it out."
    )


def slots(config: ClusterConfig) -> int:
    """How many actors the cluster holds at once, by CPUs and GPUs; none spans two nodes.

    Raises:
        ConfigError: If not even one fits.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    wanted = {"CPU": config.cpus_per_client, "GPU": config.gpus_per_client}
    held = sum(_held(node, wanted) for node in nodes)
    if held:
        return held
    most = {kind: max((node.get(kind, 0.0) for node in nodes), default=0.0) for kind in wanted}
    for kind, amount in wanted.items():
        if amount > most[kind]:
            raise ConfigError(
                f"cluster.{kind.lower()}s_per_client={amount:g}: the largest node of the cluster "
                f"has {most[kind]:g} {kind}; ask for less or add a node."
            )
    raise ConfigError(
        f"cluster.gpus_per_client={wanted['GPU']:g}: no node with as many GPUs has "
        f"cluster.cpus_per_client={wanted['CPU']:g} CPUs as well; ask for less or add a node."
    )


def _held(node: Mapping[str, float], wanted: Mapping[str, float]) -> int:
    """How many actors one node holds."""
    fits = [int(node.get("CPU", 0.0) / wanted["CPU"] + 1e-9)]
    if 0 < wanted["GPU"] < 1:  # a slice lies on one GPU: two GPUs hold four of 0.4, not five
        fits.append(int(node.get("GPU", 0.0)) * int(1 / wanted["GPU"] + 1e-9))
    elif wanted["GPU"]:
        fits.append(int(node.get("GPU", 0.0) / wanted["GPU"] + 1e-9))
    return min(fits)


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
    resources = f"--resources='{json.dumps(wanted)}'"
    if started_here():
        return (
            f"cluster.client_resources: the local Ray that was started here has no {wanted} for "
            f"client {name}; start Ray with {resources} on its node, and give cluster.address=auto."
        )
    address = ray.get_runtime_context().gcs_address
    return (
        f"cluster.client_resources: no node of the cluster at {address} has {wanted} for client "
        f"{name}; start one with ray start --address={address} {resources}."
    )
