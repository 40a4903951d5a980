"""FedProx: a proximal term holds each client near the global model.

Li et al., "Federated Optimization in Heterogeneous Networks" (arXiv:1812.06127), eq. (2): each
client minimises F_k(w) + µ/2 ‖w − wᵗ‖².
"""

from pydantic import NonNegativeFloat
from torch import Tensor

from coterie.modules.strategies.strategy import Correction, Local, Strategy


class FedProx(Strategy):
    """A proximal term."""

    mu: NonNegativeFloat = 0.01
    """Weight of the term, µ; 0 is federated averaging."""

    def correction(self, local: Local) -> Correction:
        """Return the term's gradient, µ (w − wᵗ)."""

        def add(name: str, value: Tensor) -> Tensor:
            return self.mu * (value - local.start[name].to(value.device))

        return add
