"""Weights of networks from files: rubbish is told in a sentence."""

import argparse
import io
import pickle
import shutil
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning import LightningModule, Trainer
from safetensors.torch import load_file, save, save_file

from coterie import load_model
from coterie.errors import ConfigError, DataError
from coterie.models.pretrained_encoder import Pretrained
from coterie.networks.weight_files import load_weights, parse_weights, read_file
from coterie.tracking.run_directory import RunDirectory


def saved(weights, *, zipped=True):
    content = io.BytesIO()
    torch.save(weights, content, _use_new_zipfile_serialization=zipped)
    return content.getvalue()


WEIGHTS = {"a": torch.arange(3.0), "b": torch.zeros(2, 2)}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inner", [None, "state_dict", "model_state_dict", "model"])
def test_weights_are_found_where_training_scripts_keep_them(inner, zipped):
    content = saved(WEIGHTS if inner is None else {inner: WEIGHTS, "epoch": 3}, zipped=zipped)
    found = parse_weights(content, "x.pt")
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


RUBBISH = {
    "nothing": b"",
    "a stack that is empty": b"\x80\x02.",
    "a cut number": b"\x80\x02J",
    "a memo that is not there": b"\x80\x02h\x05.",
    "no weights": saved([1, 2]),
    "no tensors": saved({"a": 1}),
    "numbers for names": saved({1: torch.ones(2), "a": torch.ones(2)}),
    "other objects": pickle.dumps(print, protocol=2),
}


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
@pytest.mark.parametrize("kind", RUBBISH)
def test_rubbish_is_refused_in_a_sentence(kind, name):
    with pytest.raises(DataError, match=r"^x\.\w+: it.* weights .*; save the .*\(\)\.$") as told:
        parse_weights(RUBBISH[kind], name)
    assert "\n" not in str(told.value)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@settings(max_examples=100, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), min_size=1))
def test_damage_is_weights_or_a_data_error(zipped, changes):
    content = bytearray(saved(WEIGHTS, zipped=zipped))
    for place, value in changes:
        content[place % len(content)] = value
    with suppress(DataError):
        parse_weights(bytes(content), "x.pt")


class Whole(LightningModule):
    """A user's module, as Lightning saves it."""

    def __init__(self, width=3):
        super().__init__()
        self.save_hyperparameters()
        self.criterion = torch.nn.Linear(2, 2)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))
        self.model.fc = torch.nn.Linear(width, 7)


def network(width=3):
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))


def test_a_checkpoint_of_lightning_is_unwrapped(tmp_path):
    whole, path = Whole(), tmp_path / "last.ckpt"
    trainer = Trainer(logger=False, accelerator="cpu", enable_checkpointing=False)
    trainer.strategy.connect(whole)
    trainer.save_checkpoint(path)
    weights, own = parse_weights(path.read_bytes(), "last.ckpt"), network()
    load_weights(own, weights, "last.ckpt", dropped=("fc",))
    assert torch.equal(own[0].weight, whole.model[0].weight)
    with pytest.raises(
        ConfigError, match=r"the network's 0\.weight is \(5, 4\), the file's \(3, 4\)"
    ):
        load_weights(network(5), weights, "last.ckpt", dropped=("fc",))


def test_names_of_the_network_itself_come_first():
    own = network()
    weights = {**own.state_dict(), **{f"x.{k}": v + 1 for k, v in own.state_dict().items()}}
    told = r"another network: it has x\.0\.weight and 6 more, which this network lacks"
    with pytest.raises(ConfigError, match=told):
        load_weights(own, weights, "both.pt")


@pytest.mark.parametrize("name", ["x.pt", "x.safetensors"])
def test_the_content_says_what_a_file_is(name):
    for content in (saved(WEIGHTS), save(WEIGHTS)):
        assert parse_weights(content, name).keys() == WEIGHTS.keys()


def test_arguments_of_a_training_script_do_no_harm():
    content = saved({"model": WEIGHTS, "args": argparse.Namespace(lr=0.1)})
    assert parse_weights(content, "x.pth").keys() == WEIGHTS.keys()


SCRIPT = io.BytesIO()
torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), SCRIPT)


@pytest.mark.filterwarnings("ignore:'torch.load' received a zip file")
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"<html>404 not found</html>", r"\(it is not a PyTorch file\)"),
        (
            saved(torch.nn.Linear(2, 2)),
            r"\(it holds torch\.nn\S*\.Linear, which weights do not need\)",
        ),
        (SCRIPT.getvalue(), r"\(it holds Python objects\)"),
        (saved({"student": WEIGHTS, "teacher": WEIGHTS}), "no weights by name in student, teacher"),
    ],
)
def test_the_cause_is_told_without_pytorchs_advice(content, why):
    with pytest.raises(DataError, match=why + "; save the network's") as told:
        parse_weights(content, "x.pt")
    assert len(str(told.value)) < 140


def test_a_weight_that_the_file_lacks_is_named():
    told = "another network: it lacks bias, which this network has; name that network with"
    with pytest.raises(ConfigError, match=told):
        load_weights(torch.nn.Linear(2, 2), {"weight": torch.zeros(2, 2)}, "x.pt")


def test_an_empty_file_is_told_as_one(tmp_path):
    (tmp_path / "x.pt").touch()
    with pytest.raises(ConfigError, match=r"encoder.weights=.*: the file is empty"):
        read_file("encoder.weights", str(tmp_path / "x.pt"))


@pytest.mark.parametrize("part", [".metadata", "checkpoint/mp_rank_00_model_states.pt"])
def test_a_checkpoint_in_parts_is_told_as_one(tmp_path, part):
    folder = tmp_path / "x.ckpt"
    (folder / part).parent.mkdir(parents=True)
    (folder / part).touch()
    told = "it is a checkpoint of (FSDP|DeepSpeed) in parts, and not a file; join them by python"
    with pytest.raises(ConfigError, match=told):
        read_file("encoder.weights", str(folder))
    with pytest.raises(DataError, match=told):
        load_model(folder)
    with pytest.raises(ConfigError, match="it is a checkpoint of Lightning, and not a run"):
        RunDirectory.open(str(folder))


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, 2) * 1j,
        torch.ones(2, 2).to_sparse(),
        torch.ones(2, 2, device="meta"),
        torch.ones(2, 2, dtype=torch.uint8).view(torch.bits8),
    ],
)
def test_weights_that_are_no_dense_real_numbers_are_refused(value):
    told = r"it holds torch\.\S*, which weights do not need"
    with pytest.raises(DataError, match=rf"^x\.pt: its weights cannot be read \({told}"):
        parse_weights(saved({"a": torch.ones(1), "b\nc": value}), "x.pt")


def test_weights_of_other_numbers_are_refused():
    value = torch.ones(2, dtype=torch.uint16)
    with pytest.raises(
        DataError, match=r"^x\.pt: b\?c is torch\.uint16; save dense tensors of real"
    ):
        parse_weights(saved({"a": torch.ones(1), "b\nc": value}), "x.pt")


REPEATED = {
    "stride of zero": torch.zeros(1, dtype=torch.float16).expand(1, 9000, 9000),
    "rows of zero stride": torch.zeros(9, 1).expand(9, 8),
    "windows": torch.arange(10.0).unfold(0, 5, 1),
}


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("kind", REPEATED)
def test_weights_with_more_numbers_than_their_file_are_refused(kind, zipped):
    content = saved({"a": torch.ones(1), "b": REPEATED[kind]}, zipped=zipped)
    with pytest.raises(DataError, match=r"^x\.pt: b repeats numbers .*\.contiguous\(\)\.$"):
        parse_weights(content, "x.pt")


def test_many_names_of_the_same_numbers_are_refused():
    shared = torch.zeros(1 << 17)
    content = saved({f"w{number}": shared for number in range(600)})
    with pytest.raises(DataError, match=r"its 600 weights overlap: they are 300 MiB"):
        parse_weights(content, "x.pt")
    assert len(parse_weights(saved({f"w{n}": shared for n in range(24)}), "x.pt")) == 24


def test_weights_in_another_order_of_memory_pass():
    turned = {
        "a": torch.rand(3, 4).T,
        "b": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    turned |= {"c": torch.rand(1, 1).expand(1, 1), "d": torch.rand(6)[2:4], "e": torch.rand(0, 3)}
    found = parse_weights(saved(turned), "x.pt")
    assert all(torch.equal(found[name], turned[name]) for name in turned)


def test_complex_weights_of_a_model_are_refused(finished_run, tmp_path):
    folder = shutil.copytree(finished_run.run_dir / "model", tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if weights[name].is_floating_point())
    save_file({**weights, name: weights[name] * 1j}, folder / "model.safetensors")
    with pytest.raises(DataError, match=f"{name} is torch.complex64; save dense tensors"):
        load_model(folder)
    config = Pretrained(path=str(folder))
    if name.startswith("encoder."):
        with pytest.raises(DataError, match=f"{name} is torch.complex64; save dense tensors"):
            config.build((1, 8, 8))
