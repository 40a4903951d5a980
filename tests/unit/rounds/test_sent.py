"""What the audit says of a phase's messages: how few samples stand behind a vector."""

import pytest
import torch

from coterie.contract.phase import Phase
from coterie.execution.events import Order, Turn, TurnDone
from coterie.execution.packing import pack
from coterie.rounds.gather import PhaseResult
from coterie.rounds.sent import sent_in

CLIENTS = (0, 1)
PHASE = Phase(name="p", stage="s", round=1, records=frozenset({"points"}))


def done(client, smallest):
    return TurnDone(
        call=0,
        client=client,
        records=pack({"points": torch.zeros(4, 2)}),
        metrics={},
        bytes_up={"records/points": 32},
        bytes_peer={},
        items_peer={},
        seconds=0.0,
        state=None,
        mail={},
        smallest={"records/points": smallest},
    )


@pytest.mark.parametrize(
    ("smallest", "least"), [((5, 3), 3), ((0, 3), 3), ((4, 0), 4), ((0, 0), None)]
)
def test_a_client_without_a_group_has_sent_no_vector(smallest, least):
    order = Order(
        phase=PHASE,
        slots={},
        layouts={},
        turns=tuple(Turn(client=client, size=9, seed=0) for client in CLIENTS),
    )
    turns = tuple(done(client, number) for client, number in zip(CLIENTS, smallest, strict=True))
    result = PhaseResult(means={}, turns=turns, failures=(), dropped=())
    (found,) = sent_in(order, result)
    assert (found.kind, found.key, found.samples) == ("record", "points", least)
