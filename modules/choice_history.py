"""The model that each client of a pool chose in each round: the groups of CP-CFL and IFCA.

The server keeps it as the metadata `choices`, round to one entry a client.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from coterie.contract import ServerState, Tensors
from coterie.contract.phase import Json

ABSENT = -1
"""The entry of a client that did not take part."""


def remember(
    server: ServerState, round_: int, gathered: Mapping[int, Tensors], clients: int
) -> dict[str, Json]:
    """Return the metadata `choices`, with those of this round added."""
    row: list[Json] = [ABSENT] * clients
    for client, tensors in gathered.items():
        row[client] = int(tensors["choice"])
    return {**_rows(server), str(round_): row}


def history(server: ServerState) -> dict[int, list[int]]:
    """Return each client's model by round, −1 for absent clients; rounds ascend."""
    rows = sorted(_rows(server).items(), key=lambda item: int(item[0]))  # JSON keeps no order
    return {
        int(round_): [n for n in row if isinstance(n, int)]
        for round_, row in rows
        if isinstance(row, list)
    }


def latest_choices(server: ServerState, after: int) -> dict[int, int]:
    """Return the last model of each client that chose one after round `after`."""
    latest: dict[int, int] = {}
    for round_, row in history(server).items():
        if round_ > after:
            latest |= {client: n for client, n in enumerate(row) if n != ABSENT}
    return latest


def favourite(choices: Iterable[int]) -> int:
    """Return the model that most clients chose, ties to the lowest index; 0 without choices."""
    counts = Counter(choices)
    return min(counts, key=lambda n: (-counts[n], n), default=0)


def smallest_share(choices: Collection[int], models: int) -> float:
    """Return the share of the clients that chose the least chosen model."""
    counts = Counter(choices)
    return min(counts[n] for n in range(models)) / max(1, len(choices))


def _rows(server: ServerState) -> dict[str, Json]:
    found = server.metadata.get("choices")
    return found if isinstance(found, dict) else {}
