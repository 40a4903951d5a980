"""Finds the address of a Ray cluster, and checks that it answers and accepts this user's token."""

import contextlib
import logging
import os
import socket
from collections.abc import Collection
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)
from ray._private.grpc_utils import init_grpc_channel
from ray.core.generated import gcs_service_pb2, gcs_service_pb2_grpc

from coterie.config.schema import ClusterConfig
from coterie.errors import ConfigError, RunError

_ANSWER_S = 10.0
_GCS = "--gcs-address="
_LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def use_token() -> None:
    """Use the token in this user's home, if there is one; Ray does so only for `auto`."""
    logging.getLogger("ray").setLevel(logging.ERROR)  # Ray's message on it is long
    maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def find_address(config: ClusterConfig) -> str:
    """Return the address of a cluster that answers, or `local` to start one.

    Ray takes `auto` for whatever cluster was last started on the machine, and repeats a refused
    call until it gives up without a reason: both are refused here.

    Args:
        config: Its address; by default RAY_ADDRESS, which is set in a submitted job.

    Raises:
        ConfigError: If the address is malformed, one of Ray Client, or fits several clusters.
        RunError: If no cluster answers there, or it refuses this process's token.
    """
    address = config.join_address
    if address == "local":
        return address
    if address == "auto":
        address = only_one(clusters_here())
        use_token()
    host, port = _parse(address)
    # Ray replaces a loopback address by the node's own, and may listen on that alone.
    own = ray.util.get_node_ip_address()
    hosts = [host, own] if host in _LOOPBACK else [host]
    listening = next((name for name in hosts if _listens(name, port)), None)
    if listening is None:
        raise no_answer(address)
    if _refuses_token(f"{listening}:{port}"):
        raise RunError(
            f"cluster.address={address}: the Ray cluster there refuses this process's token; set "
            "RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN_PATH to a file with the cluster's own token."
        )
    return address


def clusters_here() -> set[str]:
    """Return the clusters that have a node of this user, or of root, on this machine.

    Ray itself believes whatever process calls itself a raylet, and would send it the token.
    """
    if not Path("/proc/self/status").exists():  # another system
        services.find_gcs_addresses.cache_clear()
        return set(services.find_gcs_addresses())
    found = set[str]()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            # Not the owner of the folder, which is root for any process that hides its memory.
            user = (process / "status").read_text().partition("\nUid:\t")[2].split()[0]
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if int(user) in {0, os.getuid()} and services._is_raylet_process(words):
                found |= {word.partition("=")[2] for word in words if word.startswith(_GCS)}
    return found


def only_one(found: Collection[str]) -> str:
    """Return the only cluster that `auto` can mean.

    Args:
        found: Addresses of the clusters that have a node on this machine.

    Raises:
        ConfigError: If there are several.
        RunError: If there is none.
    """
    # The head may name itself by the loopback, and its other nodes by the machine's address.
    here = {*_LOOPBACK, ray.util.get_node_ip_address()}
    named = {}
    for address in sorted(found):
        host, _, port = address.rpartition(":")
        named["" if host in here else host, port] = address
    if not named:
        raise no_answer("auto")
    if len(named) > 1:
        raise ConfigError(
            f"cluster.address=auto: this machine has nodes of {len(named)} Ray clusters "
            f"({', '.join(named.values())}); give the address of the one that you mean."
        )
    return next(iter(named.values()))


def no_answer(address: str) -> RunError:
    """Return the error to raise where nothing answers."""
    return RunError(
        f"cluster.address={address}: no Ray cluster answers there; start one or leave it out."
    )


def _parse(address: str) -> tuple[str, int]:
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
            f"cluster.address={address}: it is not an address; write it as host:port, or auto."
        )
    return host, port


def _listens(host: str, port: int) -> bool:
    """Return whether anything listens there; Ray would retry for many minutes."""
    try:
        socket.create_connection((host, port), timeout=_ANSWER_S).close()
    except OSError:
        return False
    return True


def _refuses_token(address: str) -> bool:
    """Return whether the cluster at host:port refuses this process's token, or its lack of one."""
    service = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(init_grpc_channel(address))
    try:
        service.CheckAlive(gcs_service_pb2.CheckAliveRequest(), timeout=_ANSWER_S)
    except grpc.RpcError as error:
        return bool(error.code() == grpc.StatusCode.UNAUTHENTICATED)
    return False
