"""Which model of a pool a client takes, and what the server remembers of it.

The history of choices is a fact of the server: round to one entry per client, −1 for the absent.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from torch import nn
from torch.nn import functional

from coterie.contract import Client, ServerState, Tensors, derive_seed
from coterie.contract.phase import Fact

ABSENT = -1


def chosen_at_random(models: int, seed: int) -> int:
    """A model drawn uniformly, by a client's seed of this turn."""
    return derive_seed(seed, "choice") % models


def chosen_by_loss(client: Client, models: Iterable[nn.Module]) -> int:
    """The model with the least mean cross-entropy on the client's data, CP-CFL's eq. (5).

    Each is applied in eval mode to the samples themselves. Of equal losses the lowest index wins; a
    loss that is not a number counts as infinite.

    Args:
        client: Its samples and classes.
        models: Each maps samples in [0, 1] to logits (n, classes).
    """
    labels = client.data.take_labels()
    losses = [
        functional.cross_entropy(client.embed(model).double(), labels).item() for model in models
    ]
    return min(range(len(losses)), key=lambda n: math.inf if math.isnan(losses[n]) else losses[n])


def remember(
    server: ServerState, round_: int, records: Mapping[int, Tensors], clients: int
) -> dict[str, Fact]:
    """The history with what the clients chose in this round."""
    row: list[Fact] = [ABSENT] * clients
    for client, record in records.items():
        row[client] = int(record["choice"])
    return {**_history(server), str(round_): row}


def history(server: ServerState) -> dict[int, list[int]]:
    """Round to each client's model, −1 for those that were absent, rounds ascending."""
    rows = sorted(_history(server).items(), key=lambda item: int(item[0]))  # JSON keeps no order
    return {
        int(round_): [n for n in row if isinstance(n, int)]
        for round_, row in rows
        if isinstance(row, list)
    }


def latest_choices(server: ServerState, after: int) -> dict[int, int]:
    """Client to the model that it chose last, of those that chose one after round `after`."""
    latest: dict[int, int] = {}
    for round_, row in history(server).items():
        if round_ > after:
            latest |= {client: n for client, n in enumerate(row) if n != ABSENT}
    return latest


def favourite(choices: Iterable[int]) -> int:
    """The model that most clients chose, of equally many the lowest; 0 if nobody has chosen."""
    counts = Counter(choices)
    return min(counts, key=lambda n: (-counts[n], n), default=0)


def smallest_share(choices: Collection[int], models: int) -> float:
    """The share of these clients that the model with the fewest has."""
    counts = Counter(choices)
    return min(counts[n] for n in range(models)) / max(1, len(choices))


def _history(server: ServerState) -> dict[str, Fact]:
    found = server.facts.get("choices")
    return found if isinstance(found, dict) else {}
