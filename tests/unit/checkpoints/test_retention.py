"""Which checkpoints stay, which states are written, and what happens when none can be."""

import json
import os
import shutil
import threading
import time

import pytest
import torch

from coterie.checkpoints import state_files
from coterie.checkpoints import writer as module
from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.checkpoints.state_packs import pack_sizes
from coterie.checkpoints.writer import CheckpointWriter
from coterie.config.schema import CheckpointConfig
from coterie.contract.phase import ServerState
from coterie.errors import StateLostError
from coterie.execution.packing import pack
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.loops import make_loop, make_workload, plain
from tests.builders.messenger import Messenger


@pytest.fixture
def backend():
    return make_loop(make_workload(Messenger.Config())).backend


def state_of(number, values=(0.0,)):
    slots = {"e": {"w": torch.full((2,), float(number))}}
    states = {client: pack({"t": torch.tensor([v])}) for client, v in enumerate(values)}
    return RunState(server=ServerState(round=number, slots=slots), states=states)


def rounds(folder):
    return sorted(int(path.name[6:]) for path in folder.glob("round-*"))


def test_the_last_every_mth_and_the_best_stay(tmp_path, backend):
    for number in range(1, 10):
        policy = {"every": 1, "keep": 2, "keep_every": 3}
        save(tmp_path, state_of(number), backend, **policy, marked_best=number in (2, 4))
    assert rounds(tmp_path) == [3, 4, 6, 8, 9]
    assert load_checkpoint(tmp_path, backend, "best").state.server.round == 4
    assert load_checkpoint(tmp_path, backend, 6).state.server.round == 6
    assert load_checkpoint(tmp_path, backend).state.server.round == 9


def test_a_state_is_written_once_by_its_content(tmp_path, backend):
    states = tmp_path / "states"
    state = state_of(1, values=(1.0, 2.0, 1.0))
    save(tmp_path, state, backend)
    assert contents(states) == [2]  # clients 0 and 2 keep the same
    written = {path: path.stat().st_mtime_ns for path in states.iterdir()}
    state.server = state_of(2).server
    state.states[1] = pack({"t": torch.tensor([3.0])})
    save(tmp_path, state, backend)
    assert contents(states) == [1, 2]
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    for number in (3, 4):  # round 1 goes, but half of its pack is in use
        state.server = state_of(number).server
        save(tmp_path, state, backend)
        assert contents(states) == [1, 2]
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def test_a_pack_that_is_mostly_out_of_use_goes_and_its_last_states_are_written_again(
    tmp_path, backend
):
    states, state = tmp_path / "states", state_of(1, values=(1.0, 2.0, 3.0))
    save(tmp_path, state, backend, keep=1)
    state.states |= {client: pack({"t": torch.tensor([9.0 + client])}) for client in (0, 1)}
    state.server = state_of(2).server
    save(tmp_path, state, backend, keep=1)
    assert contents(states) == [3]
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def contents(folder):
    return sorted(len(pack_sizes(path)) for path in folder.iterdir())


def test_packs_have_a_largest_size_and_a_larger_state_its_own(tmp_path, backend, monkeypatch):
    monkeypatch.setattr(state_files, "PACK_BYTES", 100)
    state = state_of(1, values=tuple(map(float, range(50))))
    state.states[50] = pack({"t": torch.zeros(500)})
    save(tmp_path, state, backend)
    sizes = [list(pack_sizes(path).values()) for path in (tmp_path / "states").iterdir()]
    assert sorted(map(len, sizes))[-1] <= 25
    assert [2000] in sizes
    assert sum(map(len, sizes)) == 51
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def test_ten_thousand_states_take_a_few_syncs(tmp_path, backend, monkeypatch):
    synced, real = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: synced.append(file) or real(file))
    states = {client: pack({"t": torch.full((256,), float(client))}) for client in range(10_000)}
    state = RunState(server=state_of(1).server, states=states)
    started = time.perf_counter()
    save(tmp_path, state, backend)
    assert len(synced) < 20
    assert time.perf_counter() - started < 10  # under 3 s on a machine that does nothing else
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def test_an_unchanged_state_is_not_even_fetched(tmp_path, backend, monkeypatch):
    writer = make_writer(tmp_path, backend)
    state = state_of(1, values=(1.0, 2.0, 3.0))
    writer.finish(state, {})
    fetched = []
    real = backend.fetch
    monkeypatch.setattr(backend, "fetch", lambda handle: fetched.append(handle) or real(handle))
    state.states[1] = changed = pack({"t": torch.tensor([4.0])})
    writer.finish(state, {})
    assert fetched
    assert all(handle is changed for handle in fetched)


def make_writer(folder, backend, **policy):
    warned = []
    config = CheckpointConfig(**policy)
    writer = CheckpointWriter(folder, backend, {"seed": 1}, config, warned.append)
    writer.warned = warned
    return writer


def test_it_is_written_beside_what_comes_next_as_it_was(tmp_path, backend, monkeypatch):
    writer, gate = make_writer(tmp_path, backend), threading.Event()
    real = module.save_checkpoint
    monkeypatch.setattr(module, "save_checkpoint", lambda *a, **k: (gate.wait(10), real(*a, **k)))
    state = state_of(1, values=(1.0, 2.0))
    expected = plain(state_of(1, values=(1.0, 2.0)))
    writer.begin(state, {"offset": 3})
    state.server = state_of(2).server
    state.states[0] = pack({"t": torch.tensor([9.0])})
    state.peer_messages[1] = {0: pack({"x": torch.tensor(1)})}
    state.failures.append("later")
    state.ledger.offer([0], {"e": ("v", 8)})
    assert not rounds(tmp_path)
    gate.set()
    writer.wait()
    loaded = load_checkpoint(tmp_path, backend)
    assert plain(loaded.state) == expected
    assert (loaded.tracking, loaded.config) == ({"offset": 3}, {"seed": 1})
    assert writer.warned == []


def test_too_little_room_is_seen_before_a_byte_is_written(tmp_path, backend, monkeypatch):
    writer = make_writer(tmp_path / "c", backend)
    state = state_of(1)
    writer.begin(state, {})
    writer.wait()
    full = shutil.disk_usage(tmp_path)._replace(free=1 << 19)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: full)
    state.server = state_of(2).server
    writer.begin(state, {})
    writer.wait()
    assert writer.warned == [
        f"{tmp_path / 'c'}: no checkpoint could be written (1.0 MiB are needed, 0.5 MiB are free; "
        "make room there). The run goes on; the next checkpoint tries again."
    ]
    assert rounds(tmp_path / "c") == [1]
    monkeypatch.undo()
    writer.begin(state, {})
    writer.wait()
    assert (rounds(tmp_path / "c"), len(writer.warned)) == ([1, 2], 1)


def test_the_last_one_is_rescued_where_there_is_room(tmp_path, backend, monkeypatch):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    writer = make_writer(tmp_path / "checkpoints", backend)
    state = state_of(3, values=(1.0,))
    writer.finish(state, {})
    (rescued,) = tmp_path.glob("coterie-rescued-*/checkpoints")
    assert plain(load_checkpoint(rescued, backend).state) == plain(state)
    assert writer.warned == [
        f"{tmp_path}/checkpoints: no checkpoint could be written (File exists). It was saved in "
        f"{rescued}: make room, move it to {tmp_path}/checkpoints, and go on with resume=true."
    ]


def test_a_lost_state_costs_a_checkpoint_and_a_bug_is_raised(tmp_path, backend, monkeypatch):
    writer, state = make_writer(tmp_path, backend), state_of(1)

    def lost(handle):
        raise StateLostError(0)

    monkeypatch.setattr(backend, "fetch", lost)
    writer.begin(state, {})
    writer.wait()
    assert "The state of clients 0 is lost" in writer.warned[0]
    monkeypatch.setattr(backend, "fetch", lambda handle: 1 / 0)
    writer.begin(state, {})
    with pytest.raises(ZeroDivisionError):
        writer.wait()


def test_the_record_is_json_without_code(tmp_path, backend):
    path = save(tmp_path, state_of(1), backend)
    record = json.loads((path / "run.json").read_text())
    assert sorted(record["files"]) == [
        "peer_messages.safetensors",
        "server.safetensors",
        "stages.safetensors",
    ]
    suffixes = {file.suffix for file in tmp_path.rglob("*") if file.is_file()}
    assert suffixes == {".json", ".safetensors", ""}  # and the pointer `latest`
