"""The exponential moving average of a network's parameters in another network."""

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, ContractError


@torch.no_grad()
def update_ema(target: nn.Module, online: nn.Module, momentum: float) -> None:
    """Move the target's parameters towards the online network's: P_T ← m P_T + (1 − m) P_O.

    Buffers, such as BatchNorm's running statistics, do not change. Where both parameters are equal,
    the target's bits do not change; m = 1 changes nothing, m = 0 copies.

    Args:
        target: The target network, changed in place.
        online: The online network, of the same architecture.
        momentum: m in [0, 1].

    Raises:
        ConfigError: If m is not in [0, 1].
        ContractError: If the networks' parameters do not match in number and shape.
    """
    if not 0.0 <= momentum <= 1.0:
        raise ConfigError(f"momentum={momentum}: the EMA needs a value in [0, 1]; 0.99 is usual.")
    ours: list[Tensor] = list(target.parameters())
    theirs: list[Tensor] = list(online.parameters())
    if [p.shape for p in ours] != [p.shape for p in theirs]:
        raise ContractError(
            f"The EMA's target has {len(ours)} parameters and the online network {len(theirs)}, "
            "or their shapes differ; build both from the same config."
        )
    # m = 0 and m = 1 are exact: rounding would turn -0.0 into 0.0 and inf into NaN.
    if momentum == 1.0 or not ours:
        return
    if momentum == 0.0:
        torch._foreach_copy_(ours, theirs)
        return
    # lerp, unlike m·t + (1 − m)·o, returns t exactly where t = o.
    torch._foreach_lerp_(ours, theirs, 1.0 - momentum)
