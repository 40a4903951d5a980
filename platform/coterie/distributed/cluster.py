"""The Ray cluster: joined or started, ended, and its resources."""

import json
import logging
import os
import resource
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ray
from ray._raylet import IMPLICIT_RESOURCE_PREFIX  # type: ignore[attr-defined]
from ray.exceptions import AuthenticationError

from coterie.config.schema import ClusterConfig
from coterie.distributed.address import find_address, no_answer, use_token
from coterie.distributed.fork_server import ForkServer, worker_executable
from coterie.distributed.local_ray import LocalRay
from coterie.distributed.loopback import private
from coterie.distributed.nodes import live_nodes
from coterie.errors import ConfigError, CoterieError, RunError

_ADDRESSES = 64 * 2**30
"""Bytes of address space that a driver needs for PyTorch, Ray's threads and its object store."""
_PATIENCE_S = 5.0
"""Seconds that the end of a connection may wait for a part of Ray that stands still."""


def connect(config: ClusterConfig, *, forked: bool = True) -> bool:
    """Connect this process to Ray, unless it is connected.

    The cluster at `config.address` or RAY_ADDRESS (set in a submitted job) is joined. Without an
    address it is a local one of this process: `ray.init()` alone would join whatever cluster was
    last started on the machine.

    `forked`: a local Ray's workers are forked from the fork server, where that is possible.

    Returns:
        Whether the connection was made here.

    Raises:
        ConfigError: If the address is malformed, one of Ray Client, or fits several clusters.
        RunError: If no cluster answers at the address, it refuses this process's token, or a local
            one cannot be started.
    """
    if ray.is_initialized():
        return False
    _check_address_limit()
    try:
        address = find_address(config)
        with _own_sigterm(), _short_of_words():
            if address == "local":
                _join_own(config, forked=forked)
            else:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except CoterieError:
        raise
    except AuthenticationError as error:
        raise RunError(
            f"Ray's token cannot be read ({error.message.rstrip('.')}); set RAY_AUTH_TOKEN_PATH to "
            "a file with the cluster's own token, or unset it and RAY_AUTH_MODE."
        ) from error
    except ConnectionError as error:
        raise no_answer(str(config.address or os.environ.get("RAY_ADDRESS"))) from error
    return True


def _check_address_limit() -> None:
    """Refuse an address-space limit under which Ray would abort this process."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES:
        raise RunError(
            f"cluster.backend=ray: this process may map {limit / 2**30:.0f} GiB (ulimit -v), and "
            f"Ray maps up to {_ADDRESSES / 2**30:.0f}; lift the limit, or take cluster=serial."
        )


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which `ray.init` replaces by an exit."""
    handler = signal.getsignal(signal.SIGTERM)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    utils: Any = ray._private.utils
    theirs = utils.set_sigterm_handler
    utils.set_sigterm_handler = lambda replacement: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = theirs
        signal.signal(signal.SIGTERM, handler)  # Ray's core has put one below Python's


@contextmanager
def _short_of_words() -> Iterator[None]:
    """Keep Ray's long messages about dead workers out of the terminal; its logs have them."""
    worker: Any = ray._private.worker
    theirs = worker.listen_error_messages  # the thread that `ray.init` starts
    worker.listen_error_messages = lambda connected, stopped: None
    try:
        yield
    finally:
        worker.listen_error_messages = theirs


def _join_own(config: ClusterConfig, *, forked: bool) -> None:
    """Connect to the local Ray of this process, and start it if needed."""
    local = LocalRay.begin()
    executable = worker_executable() if forked else None
    if ForkServer.running is not None:
        local.end_too(ForkServer.running.pid)
    address = local.wait(config.start_timeout_s)
    if local.ended:  # since it was ready, maybe long ago
        local = LocalRay.begin()
        address = local.wait(config.start_timeout_s)
    with private(), _asked_once():
        use_token()
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"py_executable": executable} if executable else None,
            )
        except (ConnectionError, RuntimeError) as error:
            if not (local.ended or local.killed):
                raise
            what = local.ended or "own process"
            raise RunError(
                f"Ray could not be started (its {what} has ended); start again."
            ) from error


@contextmanager
def _asked_once() -> Iterator[None]:
    """Have Ray look for a control process only once (half a minute), not twenty times."""
    constants: Any = ray._private.ray_constants
    before = constants.NUM_REDIS_GET_RETRIES
    constants.NUM_REDIS_GET_RETRIES = 1
    try:
        yield
    finally:
        constants.NUM_REDIS_GET_RETRIES = before


def disconnect() -> None:
    """End the connection; a local Ray stays until this process ends, for the next run."""
    over, local = threading.Event(), LocalRay.running
    if local is not None:
        threading.Thread(target=_unblock, args=(local, over), daemon=True).start()
    try:
        ray.shutdown()
    finally:
        over.set()
    if local is not None and local.killed:
        local.end()


def _unblock(local: LocalRay, over: threading.Event) -> None:
    """Kill stopped processes of a local Ray during a disconnect, which would wait for them."""
    while not over.wait(_PATIENCE_S):
        local.end_stopped()


def started_here() -> bool:
    """Return whether this process is connected to its own local Ray, which no other node joins."""
    own = LocalRay.running
    here = own is not None and own.address == ray.get_runtime_context().gcs_address
    return here or bool(ray._private.worker._global_node.is_head())


def free_actors(config: ClusterConfig) -> int:
    """Return how many client actors fit the cluster at once, by CPUs and GPUs.

    None spans two nodes. Under `cluster.placement=strict_spread` a node counts once, however many
    it has room for.

    Raises:
        ConfigError: If not even one fits.
    """
    nodes = live_nodes()
    wanted = _wanted(config)
    if held := sum(_held(config, node) for node in nodes):
        return held
    most = {kind: max((node.get(kind, 0.0) for node in nodes), default=0.0) for kind in wanted}
    for kind, amount in wanted.items():
        if amount > most[kind] == 0 and kind == "GPU":
            raise ConfigError(
                f"cluster.gpus_per_client={amount:g}, as cluster=gpu sets it: no node of the "
                "cluster has a GPU; take cluster=local, or add a node that has one."
            )
        if amount > most[kind]:
            raise ConfigError(
                f"cluster.{kind.lower()}s_per_client={amount:g}: the largest node of the cluster "
                f"has {most[kind]:g} {kind}; ask for less or add a node."
            )
    raise ConfigError(
        f"cluster.gpus_per_client={wanted['GPU']:g}: no node with as many GPUs has "
        f"cluster.cpus_per_client={wanted['CPU']:g} CPUs as well; ask for less or add a node."
    )


def room(config: ClusterConfig) -> str:
    """Say how many actors the cluster's nodes could hold if nothing else used them."""
    held = [_held(config, node) for node in live_nodes()]
    nodes = f"its {sum(map(bool, held))} nodes with room for any"
    if config.placement == "strict_spread":
        return f"cluster.placement=strict_spread puts one on each of {nodes}"
    return f"{sum(held)} such actors fit {nodes}"


def alone_on_its_node(config: ClusterConfig) -> dict[str, float]:
    """Return the resource that keeps a client's actor off the nodes of the run's other actors.

    Every node has one of each resource with Ray's prefix, also one that an autoscaler is yet to
    add. The name has the driver's number, so that several runs share nodes.
    """
    if config.placement == "any":
        return {}
    return {f"{IMPLICIT_RESOURCE_PREFIX}coterie-{ray.get_runtime_context().get_job_id()}": 1.0}


def _wanted(config: ClusterConfig) -> dict[str, float]:
    return {"CPU": config.cpus_per_client, "GPU": config.gpus_per_client}


def _held(config: ClusterConfig, node: Mapping[str, float]) -> int:
    """Return how many client actors fit one node."""
    wanted = _wanted(config)
    fits = [int(node.get("CPU", 0.0) / wanted["CPU"] + 1e-9)]
    if 0 < wanted["GPU"] < 1:  # a slice is on one GPU: two GPUs hold six of 0.33, not seven
        fits.append(int(node.get("GPU", 0.0)) * int(1 / wanted["GPU"] + 1e-9))
    elif wanted["GPU"]:
        fits.append(int(node.get("GPU", 0.0) / wanted["GPU"] + 1e-9))
    if config.placement == "strict_spread":
        fits.append(1)
    return min(fits)


def cluster_has_gpu() -> bool:
    """Return whether any node has a GPU."""
    return bool(ray.cluster_resources().get("GPU", 0.0))


def leaves_gpus(config: ClusterConfig) -> bool:
    """Return whether the cluster has a GPU that the config gives to no actor."""
    return not config.gpus_per_client and cluster_has_gpu()


def own_resources(config: ClusterConfig, name: str) -> dict[str, float]:
    """Return a node-local client's custom resource; nothing if any node will do."""
    return {name: config.client_resources[name]} if name in config.client_resources else {}


def has_own_resources(config: ClusterConfig, name: str) -> bool:
    """Return whether a live node has the custom resource of a node-local client."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return all(
        any(node.get(resource, 0.0) >= amount for node in nodes)
        for resource, amount in own_resources(config, name).items()
    )


def describe_unplaced(config: ClusterConfig, name: str) -> str:
    """Describe why a node-local client cannot be placed, and what to do."""
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
