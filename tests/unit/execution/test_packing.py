"""Packing: every type back to the bit, as aligned views; a digest of all that matters."""

import numpy as np
import pytest
import torch

from coterie.contract.phase import ServerState
from coterie.execution.packing import digest, pack, pack_server, unpack, unpack_server

AWKWARD = {
    "float64": torch.tensor([[0.1, -0.0], [torch.inf, torch.nan]], dtype=torch.float64),
    "float32": torch.tensor([1e-45, 3.0], dtype=torch.float32),
    "float16": torch.tensor([65504.0], dtype=torch.float16),
    "bfloat16": torch.tensor([1.0, -3.140625, 1e38], dtype=torch.bfloat16),
    "int64": torch.tensor([[-(2**63)], [2**63 - 1]]),
    "int32": torch.tensor([-5, 7], dtype=torch.int32),
    "int8": torch.tensor([-128, 127], dtype=torch.int8),
    "uint8": torch.arange(256, dtype=torch.uint8),
    "bool": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.5),
    "scalar_int": torch.tensor(-1),
    "none": torch.zeros(0),
    "none_wide": torch.zeros(3, 0, 2, dtype=torch.bfloat16),
}


def bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8).tolist()


@pytest.mark.parametrize("name", sorted(AWKWARD))
def test_one_tensor_comes_back_to_the_bit(name):
    back = unpack(pack({name: AWKWARD[name]}))[name]
    assert back.dtype is AWKWARD[name].dtype
    assert back.shape == AWKWARD[name].shape
    assert bits(back) == bits(AWKWARD[name])


def test_all_of_them_together_come_back_in_the_order_of_their_names():
    back = unpack(pack(dict(reversed(AWKWARD.items()))))
    assert list(back) == sorted(AWKWARD)
    assert all(bits(back[name]) == bits(AWKWARD[name]) for name in AWKWARD)


def test_strided_and_tracked_tensors_are_packed_by_value():
    wide = torch.arange(12.0).reshape(3, 4).requires_grad_()
    back = unpack(pack({"turned": wide.T, "column": wide[:, 1]}))
    assert back["turned"].tolist() == wide.T.tolist()
    assert back["column"].tolist() == [1.0, 5.0, 9.0]
    assert not back["turned"].requires_grad


def test_nothing_packs_to_nothing():
    packed = pack({})
    assert (packed.nbytes, packed.buffer.size, unpack(packed)) == (0, 0, {})


def test_unpacking_gives_views_of_the_buffer_and_packing_a_copy():
    source = torch.tensor([1.0, 2.0])
    packed = pack({"a": source, "b": torch.tensor([True])})
    source.zero_()
    views = unpack(packed)
    assert views["a"].tolist() == [1.0, 2.0]
    start = packed.buffer.ctypes.data
    assert [views["a"].data_ptr(), views["b"].data_ptr()] == [start, start + 64]
    packed.buffer[:4] = np.frombuffer(np.float32(9.0).tobytes(), np.uint8)
    assert views["a"].tolist() == [9.0, 2.0]


def test_a_read_only_buffer_is_viewed_without_a_warning(recwarn):
    packed = pack(AWKWARD)
    packed.buffer.flags.writeable = False
    assert bits(unpack(packed)["uint8"]) == list(range(256))
    assert not recwarn.list


def test_offsets_are_aligned_and_sizes_leave_the_padding_out():
    packed = pack({"a": torch.zeros(3), "b": torch.zeros(17), "c": torch.zeros(1).bool()})
    assert [field.offset for field in packed.fields] == [0, 64, 192]
    assert packed.buffer.size == 193
    assert packed.nbytes == 12 + 68 + 1


def test_the_digest_is_of_content_alone():
    one = pack({"a": torch.arange(6.0), "b": torch.tensor(1)})
    same = pack({"b": torch.tensor(1), "a": torch.arange(12.0)[:6].clone()})
    assert digest(one) == digest(same)


@pytest.mark.parametrize("position", range(0, 64, 7))
def test_any_bit_changes_the_digest(position):
    packed = pack({"a": torch.tensor([0.5, -2.0])})
    before = digest(packed)
    packed.buffer[position // 8] ^= 1 << position % 8
    assert digest(packed) != before


def test_name_type_and_shape_change_the_digest_of_equal_bits():
    zeros = torch.zeros(4)
    given = [
        {"a": zeros},
        {"b": zeros},
        {"a": zeros.reshape(2, 2)},
        {"a": zeros.reshape(4, 1)},
        {"a": zeros.int()},
        {"a": zeros, "b": torch.zeros(0)},
    ]
    assert len({digest(pack(tensors)) for tensors in given}) == len(given)


def test_a_server_state_comes_back_with_its_counters_facts_and_empty_slots():
    state = ServerState(
        round=3,
        step=2,
        metadata={"k": [1, {"x": None}]},
        slots={"e": AWKWARD, "empty": {}},
        renewed=frozenset({"e"}),
    )
    back = unpack_server(pack_server(state))
    assert (back.round, back.step, back.metadata) == (3, 2, {"k": [1, {"x": None}]})
    assert back.renewed == {"e"}
    assert list(back.slots) == ["e", "empty"]
    assert all(bits(back.slots["e"][name]) == bits(AWKWARD[name]) for name in AWKWARD)
