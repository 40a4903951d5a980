"""Encoders whose weights cannot change."""

from typing import TypeVar

from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def frozen(encoder: ModuleT) -> ModuleT:
    """Turn the encoder's parameters into buffers, and keep it in eval mode.

    No optimiser, weight decay, EMA or `requires_grad_` of a method can then change them. The names
    in its state dict stay the same.
    """
    for part in encoder.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            delattr(part, name)
            part.register_buffer(name, parameter.detach())
    encoder.register_forward_pre_hook(_in_eval_mode)
    return encoder


def _in_eval_mode(encoder: nn.Module, _: object) -> None:
    encoder.eval()
