"""VICReg: views agree, and each feature varies over the batch without correlating with others.

Bardes et al., "VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning"
(arXiv:2105.04906), with lightly's loss and head, by federated averaging.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.contract import StateRoles, Task
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.modules.lightly_parts import VICRegLoss, VICRegProjectionHead
from coterie.modules.pretraining import ONLINE, Pretraining, PretrainingConfig, TwoViews
from coterie.precision import in_float32

Weight = Annotated[float, Field(ge=0.0)]


class VarianceCovariance(TwoViews):
    """One network and the loss over two views."""

    config: "VICReg.Config"

    def __init__(self, config: "VICReg.Config", task: Task) -> None:
        super().__init__(config, task)
        self.criterion = VICRegLoss(config.invariance, config.variance, config.covariance)

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return λ s(Z, Z') + μ (v(Z) + v(Z')) / 2 + ν (c(Z) + c(Z')), eq. (6) as in lightly."""
        z_a, z_b = (through(self.online, view) for view in views)
        return self.logged({"loss": self.distance(z_a, z_b)})

    def distance(self, z_a: Tensor, z_b: Tensor) -> Tensor:
        """Return the loss of both views' projections (n, projection)."""
        return in_float32(self.criterion.forward)(z_a, z_b)


class VICReg(Pretraining["VICReg.Config", VarianceCovariance]):
    """Agreeing views with varied, uncorrelated features; all averaged, clients keep nothing."""

    network = VarianceCovariance
    roles = StateRoles(*ONLINE)

    class Config(PretrainingConfig):
        """VICReg's configuration; the loss's weights are the paper's."""

        invariance: Weight = 25.0
        """λ, the weight of the squared distance of both views."""
        variance: Weight = 25.0
        """μ, the weight of the hinge that keeps each feature's deviation at 1."""
        covariance: Weight = 1.0
        """ν, the weight of the covariances of different features."""
        hidden: PositiveInt = 2048
        """Width of the projector's two hidden layers; 8192 in the paper."""
        projection: PositiveInt = 2048
        """Width of the projector's output; 8192 in the paper."""
        projector_norm: Literal["hidden"] = "hidden"
        """BatchNorm after the hidden layers, as in the paper."""
        batch_size: Annotated[int, Field(ge=2)] = 256

        def projector(self, width: int) -> nn.Module:
            """Return lightly's head, of three layers."""
            head: nn.Module = VICRegProjectionHead(width, self.hidden, self.projection)
            return head
