"""SimCLR and FedSimCLR: contrastive learning from two views, centralised and federated.

Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations"; CP-CFL's
first pretrainer (section 3.3.1) and Orchestra's baseline f-SimCLR.
"""

from pydantic import PositiveFloat, PositiveInt

from coterie.contract import StateRoles
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.contrastive import nt_xent
from coterie.modules.pretraining import (
    ONLINE,
    CrossSilo,
    Pretraining,
    PretrainingConfig,
    TwoViews,
)


class SimCLRConfig(PretrainingConfig):
    """Options of SimCLR and FedSimCLR."""

    temperature: PositiveFloat = 0.1
    """τ."""
    hidden: PositiveInt = 256
    projection: PositiveInt = 256


class Contrast(TwoViews):
    """One network and the loss over two views."""

    config: SimCLRConfig

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return NT-Xent over the 2n views: self excluded, positive included, mean over anchors."""
        z_a, z_b = (through(self.online, view) for view in views)
        return self.logged({"loss": nt_xent(z_a, z_b, self.config.temperature)})


class SimCLR(Pretraining[SimCLRConfig, Contrast]):
    """Contrasts two views, centralised. Clients keep nothing."""

    vmappable = True
    network = Contrast
    roles = StateRoles(*ONLINE)

    class Config(SimCLRConfig):
        """SimCLR's configuration, as CP-CFL pretrains with it."""


class FedSimCLR(SimCLR):
    """Contrasts two views; encoder and heads averaged."""

    vmappable = True

    class Config(CrossSilo, SimCLRConfig):
        """FedSimCLR's configuration: the cross-silo setting of Orchestra's baselines."""
