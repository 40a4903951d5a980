"""An actor's events are of its own call and clients, and have the form that tasks give them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.aggregation.exact import ExactMeans, FixedPointSum, Layout
from coterie.contract.phase import WeightedUpdate
from coterie.distributed.event_checks import StrangeEventError, check_events
from coterie.execution.events import CallDone, CallLost, ClientFailed, ClientResult, ClientStarted
from coterie.execution.packing import Field, Packed, pack

LAYOUTS = {"encoder": Layout.of({"w": torch.zeros(2, 3)})}
RESULT = ClientResult(
    call=7,
    client=3,
    gathered=pack({"x": torch.ones(2)}),
    metrics={"loss": 0.5},
    bytes_up={"encoder": 24},
    bytes_peer={},
    seconds=0.1,
)
FAILED = ClientFailed(call=7, client=4, message="It diverged.", trace="in file.py, line 3\n")
SUM = FixedPointSum(torch.zeros(6, dtype=torch.int64), torch.zeros(6, dtype=torch.int64), 5, 9)
DONE = CallDone(call=7, sums={"encoder": SUM}, device="cpu")


def check(*events):
    check_events(events, 7, {3: 5, 4: None}, LAYOUTS)


def test_what_tasks_give_passes():
    check(ClientStarted(call=7, client=3), RESULT, FAILED)
    check(DONE)
    check(CallDone(call=7, sums={}))
    check(replace(DONE, sums=other_sum(high=SUM.high.double() + 9, low=SUM.low - 5 * 2**39)))
    check(replace(DONE, sums=other_sum(weight=6)))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.floats(-(2.0**24), 2.0**24)), min_size=1, max_size=5),
    st.booleans(),
)
def test_what_clients_add_up_passes(contributions, weighted):
    sums = ExactMeans(LAYOUTS)
    for weight, value in contributions:
        own, end = (weight, value / 2**6) if weighted else (1, value)
        tensors = {"w": torch.linspace(0, end, 6, dtype=torch.float64).reshape(2, 3)}
        sums.add(0, {"encoder": WeightedUpdate(weight=own, tensors=tensors)})
    limits = {n: own if weighted else None for n, (own, _) in enumerate(contributions)}
    check_events([replace(DONE, sums=sums.sums)], 7, limits, LAYOUTS)


def other_sum(**changed):
    return {"encoder": replace(SUM, **changed)}


STRANGE = [
    "no event",
    None,
    CallLost(call=7, message="lost"),
    *(replace(RESULT, call=call) for call in (8, "7", None, [7])),
    *(replace(RESULT, client=client) for client in (5, -1, "3", None, [3], 10**9)),
    *(replace(RESULT, gathered=gathered) for gathered in (None, {}, "x")),
    replace(RESULT, gathered=Packed(np.zeros(4, np.uint8), (Field("x", "float32", (9,), 0),))),
    replace(RESULT, gathered=Packed(np.zeros(4, np.uint8), (Field("x", "no_dtype", (1,), 0),))),
    *(replace(RESULT, metrics=found) for found in (None, {"loss": "x"}, {"loss": float("nan")})),
    *(replace(RESULT, metrics=found) for found in ({3: 1.0}, {"loss": None}, {"loss": [1.0]})),
    *(replace(RESULT, seconds=seconds) for seconds in ("x", None, float("nan"))),
    *(replace(RESULT, note=note) for note in (3, None, "a\nb", "\x1b[31mred")),
    *(replace(RESULT, bytes_up=counts) for counts in (None, {"a": -1}, {"a": "x"}, {"a": 0.5})),
    replace(RESULT, items_peer=None),
    replace(RESULT, smallest={"x": "y"}),
    replace(RESULT, bytes_down={3: 1}),
    *(replace(FAILED, message=message) for message in (7, None, "a\nb")),
    replace(FAILED, trace=9),
    replace(FAILED, refused="yes"),
    replace(FAILED, client=1),
    replace(ClientStarted(call=7, client=3), client=9),
    *(replace(DONE, call=call) for call in (6, "x")),
    *(replace(DONE, sums=sums) for sums in (None, "x", {"x": 1}, {"nosuch": SUM}, {"encoder": 1})),
    replace(DONE, sums=other_sum(high=torch.zeros(3))),
    replace(DONE, sums=other_sum(low="x")),
    replace(DONE, sums=other_sum(weight=-1)),
    replace(DONE, sums=other_sum(weight=0.5)),
    replace(DONE, sums=other_sum(bound=None)),
    *(replace(DONE, sums=other_sum(weight=weight)) for weight in (0, 7, 2**40)),
    *(replace(DONE, sums=other_sum(bound=bound)) for bound in (-1, 2**70)),
    *(
        replace(DONE, sums=other_sum(high=torch.full((6,), h).double()))
        for h in (10, 0.5, math.nan)
    ),
    replace(DONE, sums=other_sum(low=torch.full((6,), 2**41 + 2**39 + 1))),
    replace(DONE, sums=other_sum(low=torch.zeros(6, dtype=torch.float32))),
    *(replace(DONE, device=device) for device in (["x"], "\x1b[31mGPU", None)),
]


@pytest.mark.parametrize("event", STRANGE, ids=range(len(STRANGE)))
def test_anything_else_is_strange(event):
    with pytest.raises(StrangeEventError):
        check(event)
    with pytest.raises(StrangeEventError):
        check(RESULT, event)


def test_no_event_is_strange_too():
    with pytest.raises(StrangeEventError):
        check()
