"""SCAFFOLD: control variates correct the drift of the clients' steps.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
(arXiv:1910.06378), Algorithm 1 with option II and a global step of 1.

Option II takes c_i⁺ = c_i − c + (x − y_i) / (K η), which for SGD is the mean of the K gradients
before their correction. That mean is taken here, weighted by the learning rates, so that it is a
gradient under momentum or Adam too, whose steps are none.
"""

from typing import ClassVar

import torch
from torch import Tensor

from coterie.contract import Tensors
from coterie.modules.strategies.strategy import Correction, Local, Sent, Strategy


class Scaffold(Strategy):
    """Control variates: c on the server, c_i at each client."""

    equal: ClassVar[bool] = True
    steps: ClassVar[bool] = True
    tells: ClassVar[bool] = True
    hears: ClassVar[bool] = True
    sums_gradients: ClassVar[bool] = True

    def initial(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return c = 0."""
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def correction(self, local: Local) -> Correction:
        """Return c − c_i."""

        def add(name: str, value: Tensor) -> Tensor:
            return _difference(local, name).to(value.device)

        return add

    def finish(self, local: Local, trained: Tensors) -> Sent:
        """Keep c_i⁺, the mean gradient, and send c_i⁺ − c_i."""
        sent, kept = {}, {}
        for name, start in local.start.items():
            before = local.kept.get(name, torch.zeros_like(start))
            after = before
            if local.rates[name]:
                after = local.gradients[name].to(start) / local.rates[name]
            sent[name], kept[name] = after - before, after
        return Sent(own=sent, kept=kept)

    def join(
        self, before: Tensors, mean: Tensors, own: Tensors, received: Tensors, share: float
    ) -> tuple[Tensors, Tensors]:
        """Return the mean, and c + |S|/N times the mean of c_i⁺ − c_i."""
        return mean, {name: own[name] + share * received[name] for name in own}


def _difference(local: Local, name: str) -> Tensor:
    server = local.server[name]
    return server - local.kept[name] if name in local.kept else server
