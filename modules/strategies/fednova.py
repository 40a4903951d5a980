"""FedNova: clients weigh by their data, not by how many steps they take.

Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization"
(arXiv:2007.07481), eqs. (6) to (8): each client's change is divided by ‖a_i‖₁, and the server takes
τ_eff = Σ p_i ‖a_i‖₁ times the mean of these. With plain SGD ‖a_i‖₁ is the number of steps τ; with
momentum ρ it is (τ − ρ (1 − ρ^τ) / (1 − ρ)) / (1 − ρ).
"""

from typing import ClassVar

import torch
from torch import Tensor

from coterie.contract import Tensors
from coterie.modules.strategies.strategy import Local, Sent, Strategy

_STEPS = "steps"


class FedNova(Strategy):
    """Normalised averaging."""

    hears: ClassVar[bool] = True
    steps: ClassVar[bool] = True

    def initial(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return the initial value of the mean of ‖a_i‖₁."""
        return {_STEPS: torch.zeros((), dtype=torch.float64)}

    def finish(self, local: Local, trained: Tensors) -> Sent:
        """Send x − (x − y_i) / ‖a_i‖₁, and ‖a_i‖₁."""
        taken = max(local.steps.values(), default=0)
        momentum = max(local.momenta.values(), default=0.0)
        length = effective_steps(taken, momentum)
        values = {
            name: start + (trained[name] - start) / length if length else start
            for name, start in local.start.items()
        }
        return Sent(values=values, own={_STEPS: torch.tensor(length, dtype=torch.float64)})

    def join(
        self, before: Tensors, mean: Tensors, own: Tensors, received: Tensors, share: float
    ) -> tuple[Tensors, Tensors]:
        """Take x + τ_eff times the mean of the normalised changes."""
        length = float(received[_STEPS])
        return {n: before[n] + length * (mean[n] - before[n]) for n in mean}, received


def effective_steps(steps: int, momentum: float) -> float:
    """Return ‖a‖₁ of SGD with momentum after a number of steps."""
    if not momentum:
        return float(steps)
    past = momentum * (1 - momentum**steps) / (1 - momentum)
    return (steps - past) / (1 - momentum)
