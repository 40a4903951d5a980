"""Tensors under structured keys: keys, types and bits come back."""

import torch

from coterie.checkpoints.record import load_tensors_file, save_tensors


def test_a_tensors_file_keeps_keys_types_and_bits(tmp_path):
    base = torch.arange(12, dtype=torch.int64).reshape(3, 4)
    tensors = {
        (1, "a.b"): base.T,
        ("1", "a.b"): base,
        (0, 2, "ü/\"'"): torch.tensor([torch.nan, -0.0]).bfloat16(),
        ("flag",): torch.tensor(True),
        ("none",): torch.zeros(2, 0),
    }
    save_tensors(tmp_path / "x.safetensors", tensors)
    back = load_tensors_file(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    for key, value in tensors.items():
        assert back[key].dtype is value.dtype
        assert back[key].shape == value.shape
        given, found = (t.contiguous().reshape(-1).view(torch.uint8) for t in (value, back[key]))
        assert torch.equal(given, found)
