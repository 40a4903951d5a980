"""Weights of networks from files: rubbish is told in a sentence."""

import io
import pickle
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.errors import DataError
from coterie.networks.weight_files import parse_weights


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
