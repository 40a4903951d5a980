"""Checkpoints: what is on disk, what comes back, and that a resumed run has the same bits."""

import json

import pytest
import torch

from coterie.checkpoints import checkpoint as module
from coterie.checkpoints.checkpoint import has_checkpoint, load_checkpoint
from coterie.checkpoints.integrity import seal
from coterie.checkpoints.record import save_tensors
from coterie.contract.phase import ServerState
from coterie.errors import DataError, InterruptedRunError
from coterie.execution.packing import pack, unpack
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.loops import make_loop, make_workload, plain, run, start
from tests.builders.messenger import Messenger
from tests.builders.pool import Pool

COHORTS = ((0, 2), (0, 1), (2,), 1.0, 2, (1, 2), 0.5, 1.0)
MESSENGER = make_workload(Messenger.Config(rounds=4, cohorts=COHORTS))


class Crash(BaseException):
    """The process is gone."""


def run_until(workload, phases, folder):
    """Run so many phases, checkpoint, and end as a crash would."""
    loop = make_loop(workload)

    def commit(state, committed):
        if state.phases == phases:
            save(folder, state, loop.backend, {"lines": 10 * phases})
            raise Crash

    loop.commit = commit
    with pytest.raises(Crash):
        loop.run(start(loop))


@pytest.mark.parametrize("phases", range(1, 9))
def test_a_resumed_run_has_the_bits_of_an_undisturbed_one(tmp_path, phases):
    undisturbed, done = run(MESSENGER)
    run_until(MESSENGER, phases, tmp_path)
    traffic = []
    loop = make_loop(MESSENGER, lambda state, committed: traffic.append(committed.traffic))
    loaded = load_checkpoint(tmp_path, loop.backend)
    state, position = loaded.state, loaded.tracking
    assert (state.phases, position) == (phases, {"lines": 10 * phases})
    loop.run(state)
    assert plain(state) == plain(undisturbed)
    assert traffic == [committed.traffic for committed in done[phases:]]


def test_there_is_peer_messages_in_flight_and_state_in_that_checkpoint(tmp_path):
    run_until(MESSENGER, 1, tmp_path)
    state = load_checkpoint(tmp_path, make_loop(MESSENGER).backend).state
    assert {to: list(messages) for to, messages in state.peer_messages.items()} == {0: [2], 1: [0]}
    assert unpack(state.peer_messages[1][0])["message"].tolist() == [0, 1, 0]
    assert sorted(state.states) == [0, 2]
    assert state.ledger.peer == 48


def test_a_pool_goes_on_with_its_facts_failures_and_versions(tmp_path):
    workload = make_workload(Pool.Config(rounds=3, broken=(1,)), [2] * 5)
    undisturbed, _ = run(workload)
    run_until(workload, 1, tmp_path)
    loop = make_loop(workload)
    state = load_checkpoint(tmp_path, loop.backend).state
    loop.run(state)
    assert plain(state) == plain(undisturbed)
    assert (state.dropped, len(state.failures)) == (3, 6)


def test_a_run_interrupted_within_a_phase_counts_its_bytes_once(tmp_path):
    undisturbed, done = run(MESSENGER)
    loop = make_loop(MESSENGER)
    state, real = start(loop), loop.backend.execute

    def interrupted(order):
        events = real(order)
        yield next(events)
        if order.phase.round == 2:
            raise InterruptedRunError("SIGINT came")
        yield from events

    loop.backend.execute = interrupted
    with pytest.raises(InterruptedRunError):
        loop.run(state)
    save(tmp_path, state, loop.backend)
    traffic = []
    again = make_loop(MESSENGER, lambda state, committed: traffic.append(committed.traffic))
    resumed = load_checkpoint(tmp_path, again.backend).state
    again.run(resumed)
    assert plain(resumed) == plain(undisturbed)
    assert traffic == [committed.traffic for committed in done[2:]]


@pytest.fixture
def backend():
    return make_loop(make_workload(Messenger.Config())).backend


def state_of(number, step=0, value=0.0, **rest):
    slots = {"e": {"w": torch.tensor([value, -0.0, 0.1])}}
    return RunState(server=ServerState(round=number, step=step, slots=slots), **rest)


def value_in(folder, backend):
    state = load_checkpoint(folder, backend).state
    return state.server.round, state.server.step, state.server.slots["e"]["w"][0].item()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_names_latest_and_pruning(tmp_path, backend):
    assert not has_checkpoint(tmp_path / "checkpoints")
    folder = tmp_path / "checkpoints"
    for number, step in ((1, 0), (1, 1), (2, 0), (10, 0)):
        path = save(folder, state_of(number, step), backend, keep=2)
        assert path.is_dir()
    assert names(folder) == ["latest", "round-000002", "round-000010"]
    assert (folder / "latest").read_text() == "round-000010\n"
    assert has_checkpoint(folder)
    assert names(path) == [
        "peer_messages.safetensors",
        "run.json",
        "server.safetensors",
        "stages.safetensors",
    ]


def test_a_step_within_a_round_has_a_name_of_its_own(tmp_path, backend):
    save(tmp_path, state_of(3), backend, keep=5)
    save(tmp_path, state_of(3, 2), backend, keep=5)
    assert names(tmp_path) == ["latest", "round-000003", "round-000003-step-002"]
    assert value_in(tmp_path, backend)[:2] == (3, 2)


@pytest.mark.parametrize("keep", [1, 2])
def test_what_was_just_written_is_never_pruned(tmp_path, backend, keep):
    # A crash before `latest` was moved leaves a later round behind; the run went on from an
    # earlier one and is interrupted before it gets there again.
    for number in (20, 30):
        save(tmp_path, state_of(number), backend, keep=2)
    save(tmp_path, state_of(25, value=7.0), backend, keep=keep)
    assert value_in(tmp_path, backend) == (25, 0, 7.0)


def test_everything_comes_back_also_what_holds_no_tensor(tmp_path, backend):
    shared = torch.arange(6.0).reshape(2, 3)
    state = RunState(
        server=ServerState(
            round=2,
            metadata={"a": [1, None, {"b": 0.1}], "c": "ü"},
            slots={"online": {"w": shared, "t": shared.T}, "target": {"w": shared}, "none": {}},
        ),
        states={3: pack({}), 11: pack({"x/y": torch.tensor([1.5]).bfloat16()})},
        peer_messages={
            0: {5: pack({}), 4: pack({"k": torch.tensor(3)})},
            10: {0: pack({"k": shared})},
        },
        phases=9,
        failures=["one"],
        dropped=1,
    )
    state.ledger.offer([3, 11], {"online": ("v", 24)})
    save(tmp_path, state, backend, {"lines": 3}, keep=1)
    loaded = load_checkpoint(tmp_path, backend)
    assert plain(loaded.state) == plain(state)
    assert list(loaded.state.peer_messages[0]) == [4, 5]
    assert loaded.tracking == {"lines": 3}


@pytest.mark.parametrize(
    "moment", ["server", "stages", "peer_messages", "run.json", "rename", "latest"]
)
@pytest.mark.parametrize("number", [2, 1])
def test_a_crash_while_writing_leaves_a_whole_one(tmp_path, backend, monkeypatch, moment, number):
    """Also when the same round is written again, as at the end of a run."""
    save(tmp_path, state_of(1, value=1.0), backend, keep=1)
    crash_at(monkeypatch, moment)
    with pytest.raises(Crash):
        save(tmp_path, state_of(number, value=2.0), backend, keep=1)
    monkeypatch.undo()
    # Before the last rename that is the former one; with it, the same round is the new one.
    new = number == 1 and moment == "latest"
    assert value_in(tmp_path, backend) == (1, 0, 2.0 if new else 1.0)
    save(tmp_path, state_of(number, value=3.0), backend, keep=1)
    assert value_in(tmp_path, backend) == (number, 0, 3.0)
    assert names(tmp_path) == ["latest", f"round-{number:06d}"]


def test_a_crash_never_costs_the_best(tmp_path, backend, monkeypatch):
    """Where the run goes on, `best` has to name the checkpoint whose score the run remembers."""
    save(tmp_path, state_of(1), backend, marked_best=True)
    for moment in ("best", "latest"):
        crash_at(monkeypatch, moment)
        with pytest.raises(Crash):
            save(tmp_path, state_of(2, best=0.5), backend, marked_best=True)
        monkeypatch.undo()
        went_on_from = load_checkpoint(tmp_path, backend).state
        assert went_on_from.best is None  # so that round 2 will be the best once more


def crash_at(monkeypatch, moment):
    """Leave half a file, or stop before a rename."""
    tensors, text, rename = save_tensors, module.write_text_atomically, module.Path.rename

    def saved(path, given):
        if path.name.startswith(moment):
            path.write_bytes(b"half")
            raise Crash
        tensors(path, given)

    def written(path, content):
        if path.name == moment:
            raise Crash
        text(path, content)

    def renamed(path, target):
        if moment == "rename" and path.name.endswith(".partial"):
            raise Crash
        return rename(path, target)

    monkeypatch.setattr(module, "save_tensors", saved)
    monkeypatch.setattr(module, "write_text_atomically", written)
    monkeypatch.setattr(module.Path, "rename", renamed)


def test_no_checkpoint_and_another_format_are_refused(tmp_path, backend):
    with pytest.raises(DataError) as caught:
        load_checkpoint(tmp_path, backend)
    assert str(caught.value) == f"{tmp_path}: no checkpoint in it; start the run afresh."
    path = save(tmp_path, state_of(1), backend, keep=1)
    record = json.loads((path / "run.json").read_text())
    del record["checksum"]
    (path / "run.json").write_text(seal({**record, "format": 99}))
    with pytest.raises(DataError, match="format 99, this version reads 1; resume it with"):
        load_checkpoint(tmp_path, backend)
