"""SimCLR and FedSimCLR: contrastive learning from two views, centralised and federated.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"; CP-CFL's
first pretrainer (section 3.3.1) and Orchestra's baseline f-SimCLR.
"""

from collections.abc import Mapping

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import StateRoles, Task
from coterie.gradcache import Terms, batch_loss
from coterie.losses.contrastive import nt_xent
from coterie.modules.pretraining import (
    ONLINE,
    CrossSilo,
    Pretraining,
    PretrainingConfig,
    TwoViews,
    Views,
)
from coterie.modules.view_pairs import pair_parts


class SimCLRConfig(PretrainingConfig):
    """Options of SimCLR and FedSimCLR."""

    temperature: PositiveFloat = 0.1
    """τ."""
    hidden: PositiveInt = 256
    """Width of the projector's hidden layer."""
    projection: PositiveInt = 256
    """Width of the projector's output."""


class Contrast(TwoViews):
    """One network and the loss over two views."""

    config: SimCLRConfig

    def __init__(self, config: SimCLRConfig, task: Task) -> None:
        super().__init__(config, task)
        self.to(task.dtype)

    def training_step(self, batch: Views, batch_idx: int) -> dict[str, Tensor]:
        """NT-Xent over the 2n views: self excluded, positive included, mean over all anchors."""
        parts = pair_parts(self.online, [self.online], batch)
        return batch_loss(parts, self._terms, self.config.micro_batch_size)

    def _terms(self, z: Mapping[str, Tensor]) -> Terms:
        return {"loss": nt_xent(z["a"], z["b"], self.config.temperature)}


class SimCLR(Pretraining[SimCLRConfig, Contrast]):
    """Contrasts two views, centralised. Clients keep nothing."""

    vmappable = True
    roles = StateRoles(*ONLINE)

    class Config(SimCLRConfig):
        """SimCLR's configuration, as CP-CFL pretrains with it."""

    def build(self) -> Contrast:
        """The network and its loss."""
        return Contrast(self._config, self._task)


class FedSimCLR(SimCLR):
    """Contrasts two views; encoder and heads averaged."""

    vmappable = True

    class Config(CrossSilo, SimCLRConfig):
        """FedSimCLR's configuration: the cross-silo setting of Orchestra's baselines."""
