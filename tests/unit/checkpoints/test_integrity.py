"""A checkpoint that was cut short or altered anywhere is recognised, and the one before it used."""

import errno
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from coterie.checkpoints import checkpoint
from coterie.checkpoints.checkpoint import load_checkpoint
from coterie.checkpoints.integrity import DamagedError
from coterie.checkpoints.record import load_tensors_file, save_tensors
from coterie.contract.phase import ServerState
from coterie.errors import DataError
from coterie.execution.packing import pack, unpack
from coterie.rounds.state import RunState
from tests.builders.checkpoints import save
from tests.builders.loops import make_loop, make_workload, plain
from tests.builders.messenger import Messenger


@pytest.fixture(scope="module")
def backend():
    return make_loop(make_workload(Messenger.Config())).backend


def state_of(number):
    value = torch.full((3,), float(number))
    return RunState(
        server=ServerState(round=number, slots={"e": {"w": value}}, metadata={"n": number}),
        states={client: pack({"t": value + client}) for client in (0, 4)},
        peer_messages={1: {0: pack({"message": value})}},
    )


@pytest.fixture(scope="module")
def two(backend, tmp_path_factory):
    """Checkpoints of rounds 1 and 2."""
    folder = tmp_path_factory.mktemp("two")
    for number in (1, 2):
        save(folder, state_of(number), backend)
    return folder


def own_files(folder):
    """The files that only the second checkpoint needs."""
    first, second = (
        {p.name for p in (folder / "states").iterdir()},
        [*(folder / "round-000002").iterdir()],
    )
    kept = load_states(folder)
    assert kept
    return [*second, *(folder / "states" / name for name in sorted(first) if name in kept)]


def load_states(folder):
    from coterie.checkpoints.integrity import unseal

    packs = [set(unseal(folder / f"round-00000{n}" / "run.json")["packs"]) for n in (1, 2)]
    return {f"{name}.safetensors" for name in packs[1] - packs[0]}


def check_the_first_is_used(folder, backend):
    loaded = load_checkpoint(folder, backend)
    assert plain(loaded.state) == plain(state_of(1))
    (sentence,) = loaded.damaged
    assert sentence.startswith(f"{folder / 'round-000002'}: ")
    assert sentence.endswith("; the one before it is used.")


@pytest.mark.parametrize("seed", range(4))
def test_any_file_truncated_anywhere(two, backend, tmp_path, seed):
    generator = np.random.default_rng(seed)
    for path in own_files(two):
        folder = shutil.copytree(two, tmp_path / path.name)
        target = folder / path.relative_to(two)
        size = target.stat().st_size
        target.write_bytes(target.read_bytes()[: generator.integers(size)])
        check_the_first_is_used(folder, backend)


@pytest.mark.parametrize("seed", range(12))
def test_any_bit_of_any_file_flipped(two, backend, tmp_path, seed):
    generator = np.random.default_rng(seed)
    for path in own_files(two):
        folder = shutil.copytree(two, tmp_path / path.name)
        target = folder / path.relative_to(two)
        content = bytearray(target.read_bytes())
        content[generator.integers(len(content))] ^= 1 << generator.integers(8)
        target.write_bytes(content)
        check_the_first_is_used(folder, backend)


_DATA = {
    "shape": [2],
    "clients": ["a", "b"],
    "sizes": [3, 4],
    "classes": [],
    "all": "",
    "contents": "",
}
WRONG = {
    "ledger": ({"down": "much"}, {"down": -1}, {"versions": {"0": {"e": 1}}}, {"received": [3]}),
    "accounts": ({"0": {"tasks": "many"}}, {"0": {"seconds": None}}, {"0": []}),
    "tracking": ({"offset": "far"}, {"offset": -5}, {"phases": -1}),
    "simulated": ({"dropped": 1.5},),
    "data": ({**_DATA, "sizes": [3]}, {**_DATA, "clients": []}),
}


@pytest.mark.parametrize(("part", "wrong"), [(p, w) for p, each in WRONG.items() for w in each])
def test_a_record_of_other_kinds_with_a_right_checksum(two, backend, tmp_path, part, wrong):
    from coterie.checkpoints.integrity import seal, unseal

    folder = shutil.copytree(two, tmp_path / "two")
    path = folder / "round-000002" / "run.json"
    record = unseal(path)
    path.write_text(seal({**record, part: {**record.get(part, {}), **wrong}}))
    check_the_first_is_used(folder, backend)


def test_a_name_of_a_tensor_that_nests_endlessly(two, backend, tmp_path):
    from coterie.checkpoints.integrity import file_digest, seal, unseal

    folder = shutil.copytree(two, tmp_path / "two")
    path = folder / "round-000002"
    save_file({"[" * 200_000: torch.zeros(1)}, path / "server.safetensors")
    record = unseal(path / "run.json")
    digests = {name: file_digest(path / name) for name in record["files"]}
    (path / "run.json").write_text(seal({**record, "files": digests}))
    check_the_first_is_used(folder, backend)


def test_a_file_that_is_gone(two, backend, tmp_path):
    for path in own_files(two):
        folder = shutil.copytree(two, tmp_path / path.name)
        (folder / path.relative_to(two)).unlink()
        check_the_first_is_used(folder, backend)


def test_the_pointer_damaged_or_gone(two, backend, tmp_path):
    for number, content in enumerate((None, "", "round-000009\n", "\x00\n", "../x\n")):
        folder = shutil.copytree(two, tmp_path / str(number))
        pointer = folder / "latest"
        pointer.unlink() if content is None else pointer.write_text(content)
        loaded = load_checkpoint(folder, backend)
        assert (loaded.state.server.round, loaded.damaged) == (2, ())


def test_none_whole_is_one_sentence(two, backend, tmp_path):
    folder = shutil.copytree(two, tmp_path / "both")
    for number in (1, 2):
        (folder / f"round-00000{number}" / "run.json").write_text("{}")
    with pytest.raises(DataError) as caught:
        load_checkpoint(folder, backend)
    assert str(caught.value) == (
        f"{folder}: none of its 2 checkpoints is intact ({folder}/round-000002: run.json is not "
        "a checkpoint's record); restore one from a backup, or start afresh in a new run_dir."
    )


def test_one_that_was_asked_for_is_not_replaced_by_another(two, backend, tmp_path):
    folder = shutil.copytree(two, tmp_path / "asked")
    (folder / "round-000002" / "server.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"server.safetensors has another checksum; choose another"):
        load_checkpoint(folder, backend, 2)
    assert load_checkpoint(folder, backend, 1).state.server.round == 1
    with pytest.raises(DataError) as caught:
        load_checkpoint(folder, backend, 7)
    assert str(caught.value) == (
        f"{folder}: it has no checkpoint of round 7; it has those of rounds 1, 2."
    )


def test_one_that_could_not_be_written_leaves_nothing(two, backend, tmp_path, monkeypatch):
    folder = shutil.copytree(two, tmp_path / "run")
    before = sorted(path.name for path in folder.iterdir())

    def full(path, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_text_atomically", full)
    with pytest.raises(OSError, match="No space"):
        save(folder, state_of(3), backend)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_run_goes_on_over_a_damaged_one(two, backend, tmp_path):
    """The damaged one is of a later round than what is written next, and does not come back."""
    folder = shutil.copytree(two, tmp_path / "on")
    (folder / "round-000002" / "run.json").write_text("{")
    state = load_checkpoint(folder, backend).state
    assert unpack(state.states[4])["t"].tolist() == [5.0, 5.0, 5.0]
    save(folder, state_of(2), backend)
    loaded = load_checkpoint(folder, backend)
    assert (plain(loaded.state), loaded.damaged) == (plain(state_of(2)), ())


def test_a_damaged_state_is_written_anew(two, backend, tmp_path):
    """The round that is done again gives the state of the same digest, whose file is there."""
    folder = shutil.copytree(two, tmp_path / "anew")
    for name in load_states(folder):
        path = folder / "states" / name
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    check_the_first_is_used(folder, backend)
    save(folder, state_of(2), backend)
    loaded = load_checkpoint(folder, backend)
    assert (plain(loaded.state), loaded.damaged) == (plain(state_of(2)), ())


def test_numbers_of_eight_bits_are_no_state(tmp_path):
    path = tmp_path / "server.safetensors"
    save_tensors(path, {("a", "w"): torch.ones(2, dtype=torch.float8_e4m3fn)})
    with pytest.raises(
        DamagedError, match=r"server\.safetensors holds numbers of the type torch\."
    ):
        load_tensors_file(path)
