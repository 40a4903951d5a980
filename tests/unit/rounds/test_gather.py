"""Failure policy on a backend that is a script: what counts, what is tried again, what is told."""

from dataclasses import dataclass, field

import pytest
import torch

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.aggregation.pipeline import Pipeline
from coterie.aggregation.stage import PhaseRun
from coterie.config.schema import FaultsConfig
from coterie.contract.phase import Phase, WeightedUpdate
from coterie.errors import InterruptedRunError, RunError
from coterie.execution.events import (
    CallDone,
    CallLost,
    ClientFailed,
    ClientResult,
    ClientTask,
    PhaseRequest,
)
from coterie.execution.packing import pack
from coterie.rounds.gather import run_phase

PHASE = Phase(name="train", stage="s", round=4, up=frozenset({"w"}))
ZERO = {"x": torch.zeros(1)}
REQUEST = PhaseRequest(
    phase=PHASE,
    slots={},
    layouts={"w": Layout.of(ZERO)},
    tasks=tuple(ClientTask(client=c, size=2, seed=c) for c in range(4)),
)

RUN = PhaseRun(
    phase=PHASE, sizes=dict.fromkeys(range(4), 2), offered={}, server={}, layouts=REQUEST.layouts
)
PIPELINE = Pipeline()


def done(call, client, gathered=True):
    return ClientResult(
        call=call,
        client=client,
        gathered=pack({"id": torch.tensor(client)} if gathered else {}),
        metrics={},
        bytes_up={},
        bytes_peer={},
        seconds=0.0,
        state=f"state of {client} from call {call}",
    )


def failed(call, client, message="ValueError: no"):
    return ClientFailed(call=call, client=client, message=message)


def ended(call, *clients):
    """The sums of a call: client c contributes the value c with weight c + 1."""
    means = ExactMeans(dict(REQUEST.layouts))
    for client in clients:
        tensors = {"x": torch.tensor([float(client)])}
        means.add(client, {"w": WeightedUpdate(weight=client + 1, tensors=tensors)})
    return CallDone(call=call, sums=means.sums)


@dataclass
class Script:
    """A backend that plays one list of events for each order and remembers the orders."""

    plays: list
    requests: list = field(default_factory=list)

    def execute(self, request):
        self.requests.append(tuple(task.client for task in request.tasks))
        yield from self.plays[len(self.requests) - 1]


def gather(*plays, **faults):
    script, seen = Script(list(plays)), []
    result = run_phase(script, REQUEST, RUN, PIPELINE, FaultsConfig(**faults), watch=seen.append)
    return result, script, seen


def value(result):
    return result.means["w"].tensors["x"].item(), result.means["w"].weight


ALL = [done(1, 3), done(2, 0), done(1, 2), ended(1, 2, 3), done(2, 1), ended(2, 0, 1)]


def test_all_is_well():
    result, script, seen = gather(ALL)
    assert value(result) == ((0 * 1 + 1 * 2 + 2 * 3 + 3 * 4) / 10, 10)
    assert [done.client for done in result.client_results] == [0, 1, 2, 3]
    assert list(result.gathered) == [0, 1, 2, 3]
    assert [r["id"].item() for r in result.gathered.values()] == [0, 1, 2, 3]
    assert result.states == {c: f"state of {c} from call {1 + (c < 2)}" for c in range(4)}
    assert (result.failures, result.dropped) == ((), ())
    assert script.requests == [(0, 1, 2, 3)]
    assert seen == ALL


def test_a_client_without_records_is_not_among_them():
    result, _, _ = gather([done(1, c, gathered=c == 2) for c in range(4)] + [ended(1, *range(4))])
    assert list(result.gathered) == [2]


def test_retry_runs_the_failed_client_alone_again():
    first = [done(1, 0), failed(1, 1), done(1, 2), done(1, 3), ended(1, 0, 2, 3)]
    result, script, _ = gather(first, [done(2, 1), ended(2, 1)])
    assert script.requests == [(0, 1, 2, 3), (1,)]
    assert value(result) == (2.0, 10)
    assert result.dropped == ()
    assert [str(f) for f in result.failures] == [
        "round 4, train: client 1 failed (ValueError: no); retried"
    ]


def test_a_client_that_goes_on_failing_is_dropped_after_its_second_task():
    first = [done(1, 0), failed(1, 1), failed(1, 2), done(1, 3), ended(1, 0, 3)]
    second = [failed(2, 1, "again"), done(2, 2), ended(2, 2)]
    result, script, _ = gather(first, second)
    assert script.requests == [(0, 1, 2, 3), (1, 2)]
    assert value(result) == ((0 + 6 + 12) / 8, 8)
    assert [one.client for one in result.client_results] == [0, 2, 3]
    assert result.dropped == (1,)
    assert [(f.client, f.message, f.remedy) for f in result.failures] == [
        (1, "ValueError: no", "retried"),
        (2, "ValueError: no", "retried"),
        (1, "again", "dropped from the phase"),
    ]


def test_drop_does_not_try_again():
    play = [failed(1, 3), done(1, 0), failed(1, 1), done(1, 2), ended(1, 0, 2)]
    result, script, _ = gather(play, on_client_failure="drop")
    assert script.requests == [(0, 1, 2, 3)]
    assert value(result) == (1.5, 4)
    assert result.dropped == (1, 3)
    assert [str(f) for f in result.failures] == [
        f"round 4, train: client {c} failed (ValueError: no); dropped from the phase"
        for c in (1, 3)
    ]


def test_fail_ends_the_run_with_the_first_failed_client():
    play = [failed(1, 3, "b"), done(1, 0), failed(1, 1, "a"), done(1, 2), ended(1, 0, 2)]
    with pytest.raises(RunError) as caught:
        gather(play, on_client_failure="fail")
    assert str(caught.value) == (
        "Client 1 failed in round 4 (a); correct its data, or set faults.on_client_failure=drop."
    )


@pytest.mark.parametrize(("share", "enough"), [(0.5, True), (0.51, False), (0.0, True)])
def test_too_few_clients_fail_the_run(share, enough):
    play = [done(1, 0), failed(1, 1, "first"), failed(1, 2), done(1, 3), ended(1, 0, 3)]
    policy = {"on_client_failure": "drop", "min_participation": share}
    if enough:
        assert gather(play, **policy)[0].dropped == (1, 2)
        return
    with pytest.raises(RunError) as caught:
        gather(play, **policy)
    assert str(caught.value) == (
        "Round 4: 2 of 4 clients succeeded, below faults.min_participation=0.51 "
        "(first failure: first); correct what fails, or lower that share, and go on "
        "with resume=true."
    )


def test_the_failures_of_a_phase_that_fails_are_told():
    first = [done(1, 0), failed(1, 1, "first"), failed(1, 2), done(1, 3), ended(1, 0, 3)]
    told, script = [], Script([first, [done(2, 2), failed(2, 1, "again"), ended(2, 2)]])
    faults = FaultsConfig(min_participation=1.0)
    with pytest.raises(RunError, match="3 of 4 clients succeeded"):
        run_phase(script, REQUEST, RUN, PIPELINE, faults, watch=[].append, abandoned=told.extend)
    assert [(f.client, f.message, f.remedy) for f in told] == [
        (1, "first", "retried"),
        (2, "ValueError: no", "retried"),
        (1, "again", "the phase failed"),
    ]


def test_an_interrupted_phase_tells_no_failures_because_it_runs_again():
    def stop(event):
        if isinstance(event, CallDone):
            raise InterruptedRunError("stop")

    told, script = [], Script([[failed(1, 1), done(1, 0), ended(1, 0)]])
    with pytest.raises(InterruptedRunError):
        run_phase(script, REQUEST, RUN, PIPELINE, FaultsConfig(), watch=stop, abandoned=told.extend)
    assert told == []


def test_without_any_client_there_is_no_mean():
    play = [failed(1, c) for c in range(4)] + [ended(1)]
    result, _, _ = gather(play, on_client_failure="drop", min_participation=0.0)
    assert (dict(result.means), result.client_results, result.dropped) == ({}, (), (0, 1, 2, 3))


def test_a_lost_call_leaves_no_trace_and_its_tasks_count_once():
    play = [
        done(1, 0),
        failed(1, 1, "out of memory"),
        done(2, 2),
        CallLost(call=1, message="ActorDiedError"),
        done(2, 3),
        ended(2, 2, 3),
        done(3, 0),
        done(3, 1),
        ended(3, 0, 1),
    ]
    result, script, seen = gather(play)
    assert script.requests == [(0, 1, 2, 3)]
    assert value(result) == (2.0, 10)
    assert len(result.client_results) == 4
    assert result.states[0] == "state of 0 from call 3"
    assert [str(f) for f in result.failures] == [
        "round 4, train: an actor failed (ActorDiedError); replaced, its clients run again"
    ]
    assert result.dropped == ()
    assert seen == play


def test_a_call_whose_end_never_came_does_not_count_and_is_no_secret():
    play = [done(1, 0), done(1, 1), ended(1, 0, 1), done(2, 2), done(2, 3)]
    result, script, _ = gather(play, [done(3, 2), ended(3, 2)])
    assert script.requests == [(0, 1, 2, 3), (2, 3)]
    assert value(result) == (pytest.approx((2 + 6) / 6), 6)
    assert [one.client for one in result.client_results] == [0, 1, 2]
    assert result.dropped == (3,)
    assert [(f.client, f.message, f.remedy) for f in result.failures] == [
        (2, "its call ended without an answer", "retried"),
        (3, "its call ended without an answer", "retried"),
        (3, "its call ended without an answer", "dropped from the phase"),
    ]


def test_what_a_lost_call_gave_does_not_count_even_if_its_number_comes_again():
    lost = [done(1, 0), done(1, 1), CallLost(call=1, message="ActorDiedError")]
    again = [failed(1, 0), done(1, 1), done(1, 2), done(1, 3), ended(1, 1, 2, 3)]
    result, _, _ = gather(lost + again, on_client_failure="drop")
    assert [one.client for one in result.client_results] == [1, 2, 3]
    assert result.dropped == (0,)
    assert value(result) == (pytest.approx(20 / 9), 9)
