"""The cluster's nodes: which are being drained, whether more can be added, and an actor's node."""

import json
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.state import state
from ray.autoscaler.v2.sdk import get_cluster_status
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental.internal_kv import _internal_kv_get

_NAMELESS = "node_"
"""Ray's prefix of the ids of nodes that no autoscaler has started."""


def live_nodes() -> list[dict[str, float]]:
    """Return the resources of each live node that is not being drained."""
    gone = leaving()
    return [n["Resources"] for n in ray.nodes() if n["Alive"] and n["NodeID"] not in gone]


def leaving() -> frozenset[str]:
    """Return the ids of nodes that are being drained, such as spot machines before their end."""
    return frozenset(state.get_draining_nodes())


def node_of(actor: Any) -> str | None:
    """Return the id of an actor's node; None if the actor is not alive."""
    known = state.actor_table(actor._actor_id.hex())
    return known["Address"]["NodeID"] if known.get("State") == "ALIVE" else None


def autoscales() -> bool:
    """Return whether an autoscaler, of Ray's first or second version, adds nodes on demand.

    A cluster without one has a monitor too, which gives each node a type of its own.
    """
    if is_autoscaler_v2():
        status = get_cluster_status(ray.get_runtime_context().gcs_address)
        nodes = [*status.active_nodes, *status.idle_nodes]
        return any(not node.ray_node_type_name.startswith(_NAMELESS) for node in nodes)
    told = _internal_kv_get(ray_constants.DEBUG_AUTOSCALING_STATUS)
    report = (json.loads(told) if told else {}).get("autoscaler_report", {})
    return any(not kind.startswith(_NAMELESS) for kind in report.get("active_nodes", {}))
