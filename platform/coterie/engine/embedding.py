"""Embeds a client's samples where the client trains."""

import numpy as np
import torch
from torch import Tensor, nn

from coterie.contract.client import ClientData
from coterie.networks.clusterer import parameter_dtype, to_unit

_ROWS = 256
"""Samples that are embedded at a time."""


def embed(network: nn.Module, data: ClientData | Tensor, device: torch.device) -> Tensor:
    """A network's outputs for a client's samples, in eval mode and without a graph.

    Args:
        network: Takes samples in [0, 1] in its own type; left on the CPU, its modes as they were.
        data: The client's data, or samples (size, …), one or more.
        device: Where to compute.

    Returns:
        Outputs (size, …), in the samples' order, on the CPU.
    """
    modes = {part: part.training for part in network.modules()}
    network.eval().to(device)
    dtype, size = parameter_dtype(network), len(data)
    with torch.no_grad():
        outputs = [
            network(to_unit(_rows(data, start, min(start + _ROWS, size)).to(device), dtype))
            for start in range(0, size, _ROWS)
        ]
    network.cpu()
    for part, training in modes.items():
        part.training = training
    return torch.cat(outputs)


def _rows(data: ClientData | Tensor, start: int, end: int) -> Tensor:
    return data[start:end] if isinstance(data, Tensor) else data.take(np.arange(start, end))
