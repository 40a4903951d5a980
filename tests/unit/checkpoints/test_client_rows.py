"""What checkpoints say of each client is written once, and comes back whole."""

import json

import numpy as np
import pytest

from coterie.checkpoints import client_rows
from coterie.checkpoints.checkpoint import STATES, load_checkpoint, save_checkpoint
from coterie.checkpoints.integrity import unseal
from coterie.checkpoints.state_files import StateFiles
from coterie.config.schema import CheckpointConfig
from coterie.contract.phase import ServerState
from coterie.errors import DataError
from coterie.rounds.accounts import ClientAccount
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.loops import make_loop, make_workload, plain
from tests.builders.messenger import Messenger


@pytest.fixture(scope="module")
def backend():
    return make_loop(make_workload(Messenger.Config())).backend


@pytest.fixture
def few_inline(monkeypatch):
    monkeypatch.setattr(client_rows, "INLINE", 10)
    monkeypatch.setattr(client_rows, "_MOST", 200)


def take_part(state, clients, round_):
    """A round in which these clients take part."""
    state.server = ServerState(round=round_, slots={}, metadata={})
    state.ledger.offer(clients, {"w": (f"version{round_}", 8)})
    state.accounts |= {c: ClientAccount(tasks=round_, loss=0.1 * c) for c in clients}


class Writes:
    """A run's checkpoints of one process, and the bytes of rows that it writes."""

    def __init__(self, folder, backend):
        self.folder, self.backend = folder, backend
        self.states = StateFiles(folder / STATES, backend)

    def save(self, state):
        before = set((self.folder / STATES).glob("rows-*"))
        path = save_checkpoint(
            self.folder,
            state.snapshot(),
            self.backend,
            tracking={},
            config={},
            policy=CheckpointConfig(keep=2),
            states=self.states,
        )
        new = set((self.folder / STATES).glob("rows-*")) - before
        return sum(file.stat().st_size for file in (*new, path / "run.json"))


def test_a_small_run_has_all_of_it_in_the_record(tmp_path, backend):
    state = RunState(server=ServerState(round=0, slots={}))
    take_part(state, [0, 3], 1)
    record = unseal(save(tmp_path, state, backend) / "run.json")
    assert record["rows"] == []
    assert record["ledger"]["versions"] == {c: {"w": "version1"} for c in ("0", "3")}
    assert set(record["accounts"]) == {"0", "3"}
    assert not list((tmp_path / STATES).glob("rows-*"))


def test_every_checkpoint_of_many_clients_comes_back_whole(tmp_path, backend, few_inline):
    draw, state = np.random.default_rng(0), RunState(server=ServerState(round=0, slots={}))
    writes = Writes(tmp_path, backend)
    for round_ in range(1, 40):
        take_part(state, draw.choice(1000, 7, replace=False).tolist(), round_)
        writes.save(state)
        assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)
        kept = [unseal(path)["rows"] for path in tmp_path.glob("round-*/run.json")]
        files = {path.stem for path in (tmp_path / STATES).glob("rows-*")}
        assert files == {name for names in kept for name in names}
        assert max(map(len, kept)) <= 8
    others = Writes(tmp_path, backend)  # of another process, which knows nothing
    take_part(state, [1], 40)
    others.save(state)
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def test_what_a_round_writes_does_not_grow_with_the_clients_that_took_part(tmp_path, backend):
    sizes = {}
    for many in (10_000, 40_000):
        state, folder = RunState(server=ServerState(round=0, slots={})), tmp_path / str(many)
        writes = Writes(folder, backend)
        take_part(state, range(many), 1)
        sizes[many, "all"] = writes.save(state)
        for round_ in range(2, 5):
            take_part(state, range(round_, many, many // 100), round_)
            sizes[many, round_] = writes.save(state)
    assert sizes[40_000, "all"] > 3.5 * sizes[10_000, "all"]
    for round_ in (2, 3, 4):
        assert sizes[40_000, round_] < 1.2 * sizes[10_000, round_]
        assert sizes[10_000, round_] < 0.1 * sizes[10_000, "all"]


def test_a_run_that_went_back_forgets_who_took_part_since(tmp_path, backend, few_inline):
    writes = Writes(tmp_path, backend)
    state = RunState(server=ServerState(round=0, slots={}))
    take_part(state, range(30), 1)
    writes.save(state)
    before = state.snapshot()
    take_part(state, range(20, 60), 2)
    writes.save(state)
    state.become(before)
    take_part(state, [2], 2)
    writes.save(state)
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


def test_files_of_rows_that_are_damaged_or_gone(tmp_path, backend, few_inline):
    state, writes = RunState(server=ServerState(round=0, slots={})), Writes(tmp_path, backend)
    take_part(state, range(50), 1)
    first = state.snapshot()
    writes.save(first)
    take_part(state, range(40, 90), 2)
    writes.save(state)
    mine, theirs = (set(unseal(tmp_path / f"round-00000{n}" / "run.json")["rows"]) for n in (2, 1))
    (only,) = mine - theirs
    path = tmp_path / STATES / f"{only}.json"
    whole = path.read_bytes()
    for content in (b"", whole[:-9], whole.replace(b"version2", b"version3", 1)):
        path.write_bytes(content)
        loaded = load_checkpoint(tmp_path, backend)
        assert plain(loaded.state) == plain(first)
        assert f"{only}.json has another checksum" in loaded.damaged[0]
    path.unlink()
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(first)
    writes.save(state)  # what is gone is written again
    assert plain(load_checkpoint(tmp_path, backend).state) == plain(state)


@pytest.mark.parametrize("name", ["rows-../../x", "../x", "/dev/zero"])
def test_a_record_names_no_rows_elsewhere(tmp_path, backend, name):
    from coterie.checkpoints.integrity import seal

    state = RunState(server=ServerState(round=1, slots={}))
    path = save(tmp_path, state, backend) / "run.json"
    record = json.loads(path.read_text())
    del record["checksum"]
    path.write_text(seal({**record, "rows": [name]}))
    with pytest.raises(DataError, match="is not a digest"):
        load_checkpoint(tmp_path, backend)
