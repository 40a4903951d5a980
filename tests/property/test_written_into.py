"""A client that writes into everything it is given changes nothing for anybody else."""

from contextlib import suppress
from copy import deepcopy
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from coterie.contract import Outcome
from coterie.execution import serial
from coterie.execution.build import build_worker
from tests.builders.cfcl import short
from tests.builders.federation import SIZES, federate, same_bits, tiny_workload

RUN = {"faults": {"on_client_failure": "retry", "min_participation": 0.1}}
PLACES = ("slots", "state", "peer_messages", "data", "labels", "phase", "module")


def scribble(value):
    """Write into tensors, arrays and mappings, however deep, wherever that is allowed."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.detach().fill_(7)
    elif isinstance(value, np.ndarray):
        with suppress(ValueError):
            value[:] = 3
    elif hasattr(value, "items"):
        for each in list(value.values()):
            scribble(each)
        with suppress(AttributeError, TypeError):
            value.clear()


class Scribbler:
    """A method one of whose clients writes into what it was given, and may fail then."""

    def __init__(self, method, culprit, places, fails):
        self.method, self.culprit, self.places, self.fails = method, culprit, places, fails
        self.failed = set()

    def __getattr__(self, name):
        return getattr(self.method, name)

    def client(self, client, phase, slots):
        if client.id != self.culprit:
            return self.method.client(client, phase, slots)
        task = phase.round, phase.step, phase.name
        if self.fails and task not in self.failed:
            self.failed.add(task)
            self._scribble(client, phase, slots)
            raise ValueError("it fails, and is asked again")
        done = _copy(self.method.client(client, phase, slots))
        self._scribble(client, phase, slots)
        return done

    def _scribble(self, client, phase, slots):
        given = {
            "slots": [slots],
            "state": [client.state],
            "peer_messages": [client.peer_messages],
            "data": [client.data.samples, client.data.rows, client.data.take()],
            "labels": [client.data.labels],
            "phase": [getattr(phase, each.name) for each in fields(phase)],
            "module": [],
        }
        for place in self.places:
            for each in given[place]:
                scribble(each)
        if "module" in self.places:
            self._take_apart(client)

    def _take_apart(self, client):
        for built in client.pool._built.values():
            scribble(built.module.state_dict())
            for part in list(built.module.modules()):
                for name in list(part._parameters):
                    part._parameters[name] = torch.nn.Parameter(torch.zeros(1))


def _copy(outcome):
    """A deep copy: what was sent is no view of what is written into next."""
    return Outcome(**{each.name: deepcopy(getattr(outcome, each.name)) for each in fields(outcome)})


def ran(culprit, places, fails):
    def build(workload, stop):
        worker = build_worker(workload, stop)
        worker.method = Scribbler(worker.method, culprit, places, fails)
        return worker

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serial, "build_worker", build)
        return federate(tiny_workload(short(), **RUN))


@cache
def undisturbed():
    done = ran(None, (), False)
    return done.state.server.slots, done.kept


@settings(max_examples=8, deadline=None)
@given(
    culprit=st.integers(0, len(SIZES) - 1),
    places=st.sets(st.sampled_from(PLACES), min_size=1),
    fails=st.booleans(),
)
def test_what_others_receive_stays(culprit, places, fails):
    done = ran(culprit, sorted(places), fails)
    assert bool(done.state.failures) == fails
    assert all(f"client {culprit} failed" in failure for failure in done.state.failures)
    slots, kept = undisturbed()
    assert all(same_bits(slots[slot], done.state.server.slots[slot]) for slot in slots)
    assert kept.keys() == done.kept.keys()
    assert all(same_bits(kept[client], done.kept[client]) for client in kept)
