"""Models and checkpoints with any content are read or refused in one sentence."""

import copy
import json
import shutil
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from coterie import load_model
from coterie.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from coterie.checkpoints.integrity import seal
from coterie.config.schema import CheckpointConfig
from coterie.contract.phase import ServerState
from coterie.errors import CoterieError, DataError
from coterie.execution.backend import Backend
from coterie.rounds.state import RunState

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
SHORT = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


class NoBackend(Backend):
    """Keeps nothing: the checkpoints here have no clients."""

    def store(self, packed):
        return packed


NoBackend.__abstractmethods__ = frozenset()


def refused(read):
    """Call, and demand one sentence if it is refused."""
    try:
        read()
    except CoterieError as error:
        caught = error
    else:
        return
    assert caught.exit_code == 2
    assert "\n" not in str(caught)


def mutated(data, value):
    """A copy of nested values with one of its parts replaced by anything."""
    value = copy.deepcopy(value)
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.booleans()):
            holder[key] = data.draw(ANY)
            return value
        holder = inner


@pytest.fixture(scope="module")
def model(finished_run, tmp_path_factory):
    return shutil.copytree(finished_run.run_dir / "model", tmp_path_factory.mktemp("m") / "model")


@SHORT
@given(st.data())
def test_any_description_of_a_model(model, data):
    path = model / "model.json"
    whole = path.read_text()
    try:
        path.write_text(json.dumps(mutated(data, json.loads(whole))))
        refused(lambda: load_model(model))
    finally:
        path.write_text(whole)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["input"].update(shape=[10**6, 10**6, 10**6]),
        lambda d: d["input"].update(shape=[1, -8, 8]),
        lambda d: d["input"].update(shape="ab"),
        lambda d: next(iter(d["server"]["slots"].values())).update(x="float32 99999999999999"),
        lambda d: next(iter(d["server"]["slots"].values())).update(x="load 3"),
        lambda d: d.update(dtype="load"),
        lambda d: d.update(features=10**12, head="centroids", clusters=10**6),
        lambda d: d.update(classes=7),
        lambda d: d.update(round="x", server={}),
    ],
)
def test_huge_and_wrong_shapes_of_a_model(model, change):
    path = model / "model.json"
    whole = path.read_text()
    description = json.loads(whole)
    change(description)
    try:
        path.write_text(json.dumps(description))
        with pytest.raises(DataError):
            load_model(model)
    finally:
        path.write_text(whole)


@pytest.mark.parametrize("key", ["width: 8", "features: 16"])
def test_a_network_that_is_larger_than_its_weights_takes_no_memory(model, key):
    path = model / "config.yaml"
    whole = path.read_text()
    try:
        path.write_text(whole.replace(key, f"{key.partition(':')[0]}: 30000000"))
        with pytest.raises(DataError, match="its files do not fit each other"):
            load_model(model)
    finally:
        path.write_text(whole)


@SHORT
@given(st.data())
def test_any_header_of_weights(model, data):
    path = model / "model.safetensors"
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = mutated(data, json.loads(whole[8 : 8 + size]))
    text = json.dumps(header).encode()
    length = data.draw(st.just(len(text)) | st.integers(0, 2**64 - 1))
    try:
        path.write_bytes(struct.pack("<Q", length) + text + whole[8 + size :])
        refused(lambda: load_model(model))
    finally:
        path.write_bytes(whole)


@SHORT
@given(st.data())
def test_any_record_of_a_checkpoint(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("c") / "checkpoints"
    state = RunState(
        server=ServerState(slots={"a": {"w": torch.zeros(2)}}, round=1, metadata={"s": 1})
    )
    backend = NoBackend()
    config = {"method": {"target": "m"}, "checkpoint": {"best": None}}
    policy, tracking = CheckpointConfig(), {"offset": 0, "phases": 0, "round": 0, "step": 0}
    path = save_checkpoint(folder, state, backend, tracking=tracking, config=config, policy=policy)
    record = json.loads((path / "run.json").read_text())
    record.pop("checksum")
    changed = mutated(data, record)
    try:
        text = seal(changed) if data.draw(st.booleans()) else "{"
    except ValueError:  # it holds an infinity, which no seal fits
        text = json.dumps(changed)
    (path / "run.json").write_text(text)
    refused(lambda: load_checkpoint(folder, backend))


@pytest.mark.parametrize("name", ["/dev/zero", "../../../../dev/zero", "a/b"])
def test_a_record_names_no_files_elsewhere(tmp_path, name):
    folder, backend = tmp_path / "checkpoints", NoBackend()
    state = RunState(server=ServerState(slots={}, round=1))
    config, policy = {"method": {"target": "m"}}, CheckpointConfig()
    path = save_checkpoint(folder, state, backend, tracking={}, config=config, policy=policy)
    record = json.loads((path / "run.json").read_text())
    record.pop("checksum")
    for change in ({"files": {**record["files"], name: "0"}}, {"clients": {"0": name}}):
        (path / "run.json").write_text(seal({**record, **change}))
        if "files" in change:
            load_checkpoint(folder, backend)  # it reads its own files alone
        else:
            with pytest.raises(CoterieError, match="is not a digest"):
                load_checkpoint(folder, backend)


def test_weights_that_share_or_lack_tensors(model):
    path = model / "model.safetensors"
    whole = path.read_bytes()
    try:
        save_file({"x": torch.zeros(1)}, path)
        refused(lambda: load_model(model))
    finally:
        path.write_bytes(whole)
