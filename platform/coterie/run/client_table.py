"""The table of a run's clients: samples, tasks, failures, loss, seconds, bytes and groups."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coterie.evaluation.label_distribution import client_names
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import RunState
from coterie.run.setup import Assembly
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.csv_text import csv_text

_ALL = 10_000
"""The most clients with a row each; of more, only those have one that ever took part."""

ClientRow = Mapping[str, int | float | str | None]


def client_rows(
    assembly: Assembly, state: RunState, groups: Mapping[int, int] | None = None
) -> list[ClientRow]:
    """Return each client's data and its work so far.

    Returns:
        A row per client, of more than 10,000 per client that ever took part: client, name (where
        the data names its clients), samples, tasks, failures, loss (of the last task), seconds (of
        all tasks), bytes_down, bytes_up, bytes_peer, and group (where there are groups).
    """
    data, workload = assembly.data, assembly.workload
    node_local = workload.node_local_classes is not None
    names = data.owner_names if node_local else client_names(data, workload.parts)
    found: list[ClientRow] = []
    taken = state.accounts.keys() | state.ledger.received.keys()
    for client in sorted(taken) if len(workload.parts) > _ALL else range(len(workload.parts)):
        own = state.accounts.get(client, ClientAccount())
        found.append(
            {
                "client": client,
                **({"name": names[client]} if names else {}),
                "samples": len(workload.parts[client]),
                "tasks": own.tasks,
                "failures": own.failures,
                "loss": own.loss,
                "seconds": own.seconds,
                "bytes_down": state.ledger.received.get(client, 0),
                "bytes_up": own.up,
                "bytes_peer": own.peer,
                **({} if groups is None else {"group": groups.get(client)}),
            }
        )
    return found


def write_clients(path: Path, rows: Sequence[ClientRow]) -> None:
    """Write `client_rows` as CSV, with empty cells for what is unknown."""
    head = list(rows[0]) if rows else ["client"]
    write_text_atomically(path, csv_text([head, *([*row.values()] for row in rows)]))
