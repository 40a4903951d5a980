"""CF-CL cut short for the tiny federation, and what crossed in it."""

from typing import Any

from torch import Tensor

from coterie.modules.cfcl import CFCL
from tests.builders.federation import Federated, SpiedTask, federate, tiny_workload

SHORT = {
    "total_steps": 7,
    "aggregate_every": 3,
    "pull_every": 2,
    "batch_size": 8,
    "budget": 2,
    "learning_rate": 0.01,
    "reserve_size": 4,
    "approx_size": 6,
    "clusters": 3,
}
"""Aggregations at 3, 6 and the end; pulls at 2, 4 and 6; everyone is everyone's neighbour."""


def short(**changes: Any) -> CFCL.Config:
    return CFCL.Config(**SHORT | changes)


def ran(run: dict[str, Any] | None = None, **changes: Any) -> Federated:
    """A finished run; `run` are keys of the RunConfig, the others the method's."""
    return federate(tiny_workload(short(**changes), **(run or {})))


def tasks(federated: Federated, kind: str) -> list[SpiedTask]:
    return [task for task in federated.spy.tasks if task.phase.name == kind]


def encoder(federated: Federated) -> dict[str, Tensor]:
    return dict(federated.state.server.slots["encoder"])


def encoders(federated: Federated) -> list[dict[str, Tensor]]:
    """The global encoder after each phase."""
    return [dict(after.slots["encoder"]) for *_, after in federated.spy.served]


def messages(federated: Federated) -> list[tuple[int, int, str, Tensor]]:
    """Sender, recipient, key and tensor of all that devices sent each other."""
    return [
        (task.client.id, recipient, key, value)
        for task in federated.spy.tasks
        for recipient, message in task.outcome.peer_messages.items()
        for key, value in message.items()
    ]
