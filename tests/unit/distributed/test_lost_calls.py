"""What the driver makes of actors that die, hang or find no place, on a scripted cluster."""

import time
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, OutOfMemoryError

from coterie.config.schema import ClusterConfig, FaultsConfig
from coterie.distributed import backend, fleet, handles, waiting, watch
from coterie.distributed.handles import Keeper
from coterie.distributed.waiting import wait_until_ready
from coterie.distributed.watch import ClusterWatch
from coterie.errors import RunError, StateLostError
from coterie.execution.events import CallDone, CallLost, ClientFailed
from tests.builders.scripted_ray import (
    Actor,
    ScriptedRay,
    losing_its_node,
    request,
    scripted_backend,
    started,
)


def without_room(ray, built):
    """The node of all actors but the first goes; there is no room for replacements."""
    for actor in built.fleet.actors[1:]:
        actor.fate = losing_its_node()
    ray.free = 1


def test_a_death_counts_once_however_many_calls_waited_behind_it(monkeypatch):
    ray = ScriptedRay(free=4, once={0})
    built = scripted_backend(monkeypatch, ray, 4, max_actor_restarts=1)
    without_room(ray, built)
    events = list(built._execute(request(8)))
    assert [event.client for event in events if isinstance(event, CallLost)] == [None] * 4
    assert sum(isinstance(event, CallDone) for event in events) == 8


def test_the_client_in_whose_task_it_dies_is_blamed_and_nobody_behind_it(monkeypatch):
    ray = ScriptedRay(free=2, fatal={0})
    built = scripted_backend(monkeypatch, ray, 2, max_actor_restarts=50)
    without_room(ray, built)
    events = list(built._execute(request(6)))
    lost = [event.client for event in events if isinstance(event, CallLost)]
    assert [client for client in lost if client is not None] == [0]
    assert sum(isinstance(event, CallDone) for event in events) == 5


def test_a_silo_without_a_place_fails_once_and_the_others_go_on(monkeypatch):
    ray = ScriptedRay(free=2, new=lambda: Actor(starts=False))
    resources = {"client_resources": {"a": 1.0, "b": 1.0}, "start_timeout_s": 0.2}
    monkeypatch.setattr(fleet, "has_own_resources", lambda config, name: True)
    built = scripted_backend(monkeypatch, ray, 2, names=("a", "b"), **resources)
    built.fleet.actors[0].fate = ActorDiedError()
    events = list(built._execute(request(2)))
    (failed,) = (event for event in events if isinstance(event, ClientFailed))
    assert failed.client == 0
    assert "did not start a replacement" in failed.message
    assert built.fleet.host(0) is None


def test_a_tally_does_not_wait_for_a_silo_without_a_place(monkeypatch):
    ray = ScriptedRay(free=2, new=lambda: Actor(starts=False))
    monkeypatch.setattr(fleet, "has_own_resources", lambda config, name: True)
    built = scripted_backend(
        monkeypatch, ray, 1, names=("a",), client_resources={"a": 1.0}, start_timeout_s=0.2
    )
    built.fleet.replace(built.fleet.actors[0])
    (host,) = built.fleet.actors

    def fetch(reference):
        raise host.fate

    monkeypatch.setattr(backend, "fetch", fetch)
    assert built._fetch_tally(host.tally.remote()) is None


@pytest.mark.parametrize("answered", [True, False])
def test_an_actor_that_answered_while_the_driver_was_held_up_is_not_killed(monkeypatch, answered):
    def reports(stream):
        done = [CallDone(call=stream.call, sums={})]
        return [started(stream), done] if answered else [started(stream)]

    ray = ScriptedRay(free=1, reports=reports)
    built = scripted_backend(monkeypatch, ray, 1, faults=FaultsConfig(client_timeout_s=1.0))
    monkeypatch.setattr(backend, "_GRACE_S", -1.2)  # it may take 0.05 s
    events = built._execute(request(1))
    next(events)
    time.sleep(0.3)
    rest = list(events)
    assert bool(ray.killed) is not answered
    assert isinstance(rest[-1], CallDone if answered else CallLost)


def test_the_devices_of_a_run_are_those_of_its_actors(monkeypatch):
    def reports(stream):
        name = "H100" if stream.actor is first else "H200"
        return [[CallDone(call=stream.call, sums={}, device=name)]]

    built = scripted_backend(monkeypatch, ScriptedRay(free=3, reports=reports), 3)
    first = built.fleet.actors[0]
    list(built._execute(request(3)))
    assert built.devices == {"H100", "H200"}


def test_after_a_state_is_lost_no_call_waits_behind_one_that_nobody_reads(monkeypatch):
    ray = ScriptedRay(free=3, reports=lambda stream: [])
    built = scripted_backend(monkeypatch, ray, 3)
    first, *others = built.fleet.actors

    def read(stream, call, keep):
        raise StateLostError(0)

    ray.reports = lambda stream: [[]] if stream.actor is first else []
    monkeypatch.setattr(backend, "read_events", read)
    with pytest.raises(StateLostError):
        list(built._execute(request(3)))
    assert ray.killed == others
    assert built.fleet.actors[0] is first
    assert len(built.fleet.actors) == 3


@pytest.mark.parametrize(("starting", "least"), [((True, False, False), 1), ((True, True), 2)])
def test_it_starts_with_enough_actors_at_the_time_limit(monkeypatch, starting, least):
    monkeypatch.setattr(waiting, "ray", ScriptedRay(free=3))
    actors = [Actor(starts=starts) for starts in starting]
    late = wait_until_ready(actors, ClusterConfig(start_timeout_s=0.1), lambda: None, least)
    assert set(late) == {actor for actor in actors if not actor.starts}


def test_too_few_actors_at_the_time_limit_are_too_few(monkeypatch):
    ray = ScriptedRay(free=3)
    monkeypatch.setattr(waiting, "ray", ray)
    monkeypatch.setattr(waiting, "_missing", lambda *counts: str(counts[:2]))
    actors = [Actor(), Actor(starts=False), Actor(starts=False)]
    with pytest.raises(RunError, match=r"\(1, 2\)"):
        wait_until_ready(actors, ClusterConfig(start_timeout_s=0.1), lambda: None, 2)


def test_an_actor_that_ran_out_of_memory_while_it_joined_is_left_out(monkeypatch):
    ray = ScriptedRay(free=2)
    built = scripted_backend(monkeypatch, ray, 1)
    late = Actor(fate=OutOfMemoryError("memory pressure"))
    built.fleet._homes[late], built.fleet.joining = None, {late: late.ready.remote()}
    built.fleet._stillborn = 0
    built.fleet._take_in()
    assert late not in built.fleet.actors
    assert built.fleet.joining == {}


def test_states_are_moved_once_though_moving_takes_longer_than_a_look(monkeypatch):
    places, moves, notes = {}, [], []

    def put(value):
        moves.append(value)
        places["driver", value] = {"node_ids": ["driver"]}
        return "driver", value

    store = SimpleNamespace(get=lambda reference: reference[1], put=put)
    monkeypatch.setattr(handles, "ray", store)
    monkeypatch.setattr(
        handles, "get_local_object_locations", lambda refs: {r: places[r] for r in refs}
    )
    context = SimpleNamespace(gcs_address="127.0.0.1:1")
    alive = SimpleNamespace(is_initialized=lambda: True, get_runtime_context=lambda: context)
    monkeypatch.setattr(watch, "ray", alive)
    monkeypatch.setattr(watch, "_ask", lambda address: None)
    monkeypatch.setattr(watch, "_EVERY_S", 0.0)  # every check looks
    keeper = Keeper()
    kept = [keeper.keep(("spot", value)) for value in range(9)]
    places.update({stored.reference: {"node_ids": ["spot"]} for stored in kept})
    checks = ClusterWatch(lambda: None)
    checks.look = lambda: notes.append(keeper.leave({"spot"}, checks.check))
    moved = keeper.leave({"spot"}, checks.check)
    assert sorted(moves) == list(range(9))
    assert moved + sum(notes) == 9
    assert [stored.reference for stored in kept] == [("driver", value) for value in range(9)]
