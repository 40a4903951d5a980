"""What the audit says of a phase's messages: how few samples stand behind a vector."""

import pytest
import torch

from coterie.contract.phase import Phase
from coterie.execution.events import ClientResult, ClientTask, PhaseRequest
from coterie.execution.packing import pack
from coterie.rounds.gather import PhaseResult
from coterie.rounds.sent import sent_in

CLIENTS = (0, 1)
PHASE = Phase(name="p", stage="s", round=1, gathered=frozenset({"points"}))


def done(client, smallest):
    return ClientResult(
        call=0,
        client=client,
        gathered=pack({"points": torch.zeros(4, 2)}),
        metrics={},
        bytes_up={"gathered/points": 32},
        bytes_peer={},
        items_peer={},
        seconds=0.0,
        state=None,
        peer_messages={},
        smallest={"gathered/points": smallest},
    )


@pytest.mark.parametrize(
    ("smallest", "least"), [((5, 3), 3), ((0, 3), 3), ((4, 0), 4), ((0, 0), None)]
)
def test_a_client_without_a_group_has_sent_no_vector(smallest, least):
    request = PhaseRequest(
        phase=PHASE,
        slots={},
        layouts={},
        tasks=tuple(ClientTask(client=client, size=9, seed=0) for client in CLIENTS),
    )
    tasks = tuple(done(client, number) for client, number in zip(CLIENTS, smallest, strict=True))
    result = PhaseResult(means={}, client_results=tasks, failures=(), dropped=())
    (found,) = sent_in(request, result)
    assert (found.type, found.key, found.samples) == ("gathered", "points", least)
