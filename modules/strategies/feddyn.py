"""FedDyn: a dynamic regulariser aligns the clients' optima with the global one.

Acar et al., "Federated Learning Based on Dynamic Regularization" (arXiv:2111.04263), Algorithm 1.
Client k minimises L_k(θ) − ⟨h_k, θ⟩ + α/2 ‖θ − θᵗ⁻¹‖², where h_k is its last gradient.
"""

from typing import ClassVar

import torch
from pydantic import PositiveFloat
from torch import Tensor

from coterie.contract import Tensors
from coterie.modules.strategies.strategy import Correction, Local, Sent, Strategy


class FedDyn(Strategy):
    """A dynamic regulariser: h on the server, h_k at each client."""

    equal: ClassVar[bool] = True
    steps: ClassVar[bool] = True

    alpha: PositiveFloat = 0.01
    """Weight of the regulariser, α."""

    def initial(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return h = 0."""
        return {name: torch.zeros_like(value) for name, value in parameters.items()}

    def correction(self, local: Local) -> Correction:
        """Return α (θ − θᵗ⁻¹) − h_k."""

        def add(name: str, value: Tensor) -> Tensor:
            added = self.alpha * (value - local.start[name].to(value.device))
            return added - local.kept[name].to(value.device) if name in local.kept else added

        return add

    def finish(self, local: Local, trained: Tensors) -> Sent:
        """Return h_k − α (θ_k − θᵗ⁻¹), which the client keeps."""
        kept = {}
        for name, start in local.start.items():
            before = local.kept.get(name, torch.zeros_like(start))
            kept[name] = before - self.alpha * (trained[name] - start)
        return Sent(kept=kept)

    def join(
        self, before: Tensors, mean: Tensors, own: Tensors, received: Tensors, share: float
    ) -> tuple[Tensors, Tensors]:
        """Return the mean less h / α, after h ← h − α |P|/m times the mean change."""
        after = {n: own[n] - self.alpha * share * (mean[n] - before[n]) for n in own}
        return {name: mean[name] - after[name] / self.alpha for name in mean}, after
