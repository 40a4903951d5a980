"""Barlow Twins: the cross-correlation of both views' features approaches the identity.

Zbontar et al., "Barlow Twins: Self-Supervised Learning via Redundancy Reduction"
(arXiv:2103.03230), with lightly's loss and head, by federated averaging.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from torch import nn

from coterie.contract import StateRoles, Task
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.modules.lightly_parts import BarlowTwinsLoss, BarlowTwinsProjectionHead
from coterie.modules.pretraining import ONLINE, Pretraining, PretrainingConfig, TwoViews
from coterie.precision import in_float32


class Redundancy(TwoViews):
    """One network and the loss over two views."""

    config: "BarlowTwins.Config"

    def __init__(self, config: "BarlowTwins.Config", task: Task) -> None:
        super().__init__(config, task)
        self.criterion = BarlowTwinsLoss(config.off_diagonal)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return Σ_i (1 − C_ii)² + λ Σ_i Σ_j≠i C_ij², eqs. (1) and (2)."""
        z_a, z_b = (through(self.online, view) for view in views)
        return self.logged({"loss": in_float32(self.criterion.forward)(z_a, z_b)})


class BarlowTwins(Pretraining["BarlowTwins.Config", Redundancy]):
    """Decorrelated features that agree in both views; all averaged. Clients keep nothing."""

    network = Redundancy
    roles = StateRoles(*ONLINE)

    class Config(PretrainingConfig):
        """Barlow Twins' configuration."""

        off_diagonal: Annotated[float, Field(ge=0.0)] = 0.005
        """λ, the weight of the correlations between different features."""
        hidden: PositiveInt = 2048
        """Width of the projector's two hidden layers; 8192 in the paper."""
        projection: PositiveInt = 2048
        """Width of the projector's output; 8192 in the paper."""
        projector_norm: Literal["hidden"] = "hidden"
        """BatchNorm after the hidden layers, as in the paper."""
        batch_size: Annotated[int, Field(ge=2)] = 256
        """Samples per batch, n; in small batches the first gradients are large."""

        def projector(self, width: int) -> nn.Module:
            """Return lightly's head, of three layers."""
            head: nn.Module = BarlowTwinsProjectionHead(width, self.hidden, self.projection)
            return head
