"""Tensors under structured keys in a safetensors file: no code runs on load."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

Key = tuple[str | int, ...]
"""For example (client, "target.encoder.weight")."""


def save_tensors(path: Path, tensors: Mapping[Key, Tensor]) -> None:
    """Write tensors, to the disk; the keys are kept as JSON lists."""
    # Copies, for two entries may be the same tensor, which safetensors refuses to write.
    copies = {json.dumps(key): value.contiguous().clone() for key, value in tensors.items()}
    save_file(copies, path)
    with path.open("rb") as file:
        os.fsync(file.fileno())


def load_tensors_file(path: Path) -> dict[Key, Tensor]:
    """Read what `save_tensors` wrote."""
    return {tuple(json.loads(key)): value for key, value in load_file(path).items()}
