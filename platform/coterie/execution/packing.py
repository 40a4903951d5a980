"""Packs named tensors into one flat buffer, which an object store shares without copies."""

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from coterie.contract.phase import ServerState, Tensors

_ALIGNMENT = 64


@dataclass(frozen=True)
class Field:
    """A tensor's place in the buffer."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """The tensor's dtype."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def nbytes(self) -> int:
        """The tensor's size in bytes."""
        return prod(self.shape) * self.torch_dtype.itemsize


@dataclass(frozen=True)
class Packed:
    """Named tensors in one buffer.

    Attributes:
        buffer: uint8 (bytes,), each tensor aligned to 64 bytes.
        fields: The tensors' places, sorted by name.
    """

    buffer: NDArray[np.uint8]
    fields: tuple[Field, ...]

    @property
    def nbytes(self) -> int:
        """The tensors' size in bytes, without padding."""
        return sum(field.nbytes for field in self.fields)


def pack(tensors: Tensors) -> Packed:
    """Copy tensors into one buffer."""
    fields, end = [], 0
    for name in sorted(tensors):
        tensor = tensors[name]
        offset = -(-end // _ALIGNMENT) * _ALIGNMENT
        dtype = str(tensor.dtype).removeprefix("torch.")
        fields.append(Field(name, dtype, tuple(tensor.shape), offset))
        end = offset + fields[-1].nbytes
    buffer = np.zeros(end, dtype=np.uint8)
    for field in fields:
        source = tensors[field.name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        buffer[field.offset : field.offset + field.nbytes] = source.numpy()
    return Packed(buffer, tuple(fields))


def unpack(packed: Packed) -> dict[str, Tensor]:
    """Return the tensors as views of the buffer, which must not be written to."""
    if not packed.fields:
        return {}
    with warnings.catch_warnings():
        # An object store's memory is read-only, and the tensors are only read.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        flat = torch.from_numpy(packed.buffer)
    return {field.name: _view(flat, field) for field in packed.fields}


def _view(flat: Tensor, field: Field) -> Tensor:
    if not field.nbytes:  # torch cannot view an empty tensor as another dtype
        return torch.empty(field.shape, dtype=field.torch_dtype)
    part = flat[field.offset : field.offset + field.nbytes]
    return part.view(field.torch_dtype).reshape(field.shape)


def copied(tensors: Tensors) -> dict[str, Tensor]:
    """Return copies of the tensors, for code that may write into them."""
    return {name: value.clone() for name, value in tensors.items()}


def digest(packed: Packed) -> str:
    """Return a content hash, which is equal for equal names, dtypes, shapes and bits."""
    state = hashlib.blake2b(repr(packed.fields).encode(), digest_size=16)
    state.update(packed.buffer.data)
    return state.hexdigest()


@dataclass(frozen=True, kw_only=True)
class PackedServer:
    """A server state whose slots are packed."""

    state: ServerState
    slots: Mapping[str, Packed]


def pack_server(server: ServerState) -> PackedServer:
    """Pack each slot of a server state."""
    slots = {name: pack(server.slots[name]) for name in sorted(server.slots)}
    return PackedServer(state=replace(server, slots={}), slots=slots)


def unpack_server(packed: PackedServer) -> ServerState:
    """Return the server state with its tensors as views of the buffers."""
    slots = {name: unpack(slot) for name, slot in packed.slots.items()}
    return replace(packed.state, slots=slots)
