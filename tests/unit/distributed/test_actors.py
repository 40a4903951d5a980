"""What an actor streams, in which order: a driver that is told of the end has all objects."""

from types import SimpleNamespace

import pytest
import torch

from coterie.distributed import actors
from coterie.distributed.actors import ClientActor, Report
from coterie.execution.events import CallDone, ClientResult, ClientStarted
from coterie.execution.packing import Packed, pack


def task(client):
    return ClientResult(
        call=1,
        client=client,
        gathered=pack({}),
        metrics={},
        bytes_up={},
        bytes_peer={},
        seconds=0.0,
        state=pack({"t": torch.tensor([float(client)])}),
        peer_messages={7: pack({"m": torch.tensor(1)})},
    )


def stream(events):
    actor = ClientActor.__new__(ClientActor)
    actor.worker = SimpleNamespace(run=lambda order, call: iter(events))
    return list(actor.execute(None, 1))


@pytest.mark.parametrize("flush", [0.0, 100.0])
def test_the_end_of_a_call_comes_after_every_object(monkeypatch, flush):
    monkeypatch.setattr(actors, "FLUSH_S", flush)
    sent = stream([task(0), task(1), CallDone(call=1, sums={})])
    assert isinstance(sent[-1], Report)
    assert [type(event) for event in sent[-1].events] == [CallDone]
    ended = [isinstance(e, CallDone) for r in sent[:-1] if isinstance(r, Report) for e in r.events]
    assert ended == [False, False]
    assert sum(isinstance(item, Packed) for item in sent[:-1]) == 4
    waiting = 0  # every report is followed by just the objects that it lists
    for item in sent:
        if isinstance(item, Report):
            assert waiting == 0
            waiting = len(item.objects)
        else:
            waiting -= 1
    assert waiting == 0


def test_the_start_of_a_task_is_told_at_once():
    sent = stream([ClientStarted(call=1, client=3), CallDone(call=1, sums={})])
    assert [report.events[0] for report in sent] == [
        ClientStarted(call=1, client=3),
        CallDone(call=1, sums={}),
    ]
