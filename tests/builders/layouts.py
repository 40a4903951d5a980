"""The layout of a model, and a server's state as one that loads a saved model knows it."""

from dataclasses import replace

import torch
from torch import nn

from coterie.contract import ServerState


def layout(model: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in model.state_dict().items()}


def without_values(server: ServerState) -> ServerState:
    """The state with the same shapes, and all values zero."""
    slots = {
        slot: {name: torch.zeros_like(value) for name, value in tensors.items()}
        for slot, tensors in server.slots.items()
    }
    return replace(server, slots=slots)
