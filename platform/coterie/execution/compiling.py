"""The option `compile`: encoders compiled by TorchInductor."""

from lightning import LightningModule
from torch import nn

from coterie.networks.encoders import Encoder

_ALL = 1 << 20
"""A limit on graphs that no run reaches."""


def compile_encoders(module: LightningModule, mode: str) -> None:
    """Have each encoder of a module compiled at its first call with each batch shape.

    A graph holds for one shape: one for all shapes would follow the shape that comes first, and
    with it the bits the order of the clients. PyTorch's limit on graphs, beyond which it computes
    uncompiled, is lifted for the same reason.
    """
    import torch._dynamo  # takes seconds, which only a run that compiles pays

    torch._dynamo.config.recompile_limit = _ALL
    torch._dynamo.config.accumulated_recompile_limit = _ALL
    part: nn.Module
    for part in module.modules():
        if isinstance(part, Encoder):
            part.compile(dynamic=False, mode=mode)
