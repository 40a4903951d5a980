"""f-SpecLoss: spectral contrastive learning by federated averaging.

HaoChen et al., "Provable Guarantees for Self-Supervised Deep Learning with Spectral Contrastive
Loss" (NeurIPS 2021), eq. (6); Orchestra's baseline f-SpecLoss.
"""

from pydantic import PositiveFloat

from coterie.contract import StateRoles
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.spectral import spectral_contrast
from coterie.modules.pretraining import (
    ONLINE,
    CrossSilo,
    Pretraining,
    PretrainingConfig,
    TwoViews,
)
from coterie.networks.heads import ProjectorNorm


class SpectralContrast(TwoViews):
    """One network and the loss over two views."""

    config: "SpecLoss.Config"

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the loss: views of one sample attract, different samples become orthogonal."""
        z_a, z_b = (through(self.online, view) for view in views)
        return self.logged({"loss": spectral_contrast(z_a, z_b, self.config.bound)})


class SpecLoss(Pretraining["SpecLoss.Config", SpectralContrast]):
    """Contrasts two views by the spectral loss; encoder and projector averaged.

    Clients keep nothing.
    """

    vmappable = True
    network = SpectralContrast
    roles = StateRoles(*ONLINE)

    class Config(CrossSilo, PretrainingConfig):
        """SpecLoss's configuration: the cross-silo setting of Orchestra's baselines."""

        projector_norm: ProjectorNorm = "hidden"
        """BatchNorm in the projector: `none`, `hidden` after its first layer, or `all`, where one
        without parameters also follows the last layer, as in Orchestra's code."""
        bound: PositiveFloat | None = None
        """μ: projections longer than √μ are shortened to it, as in the authors' code. By default
        all have length 1, as in Orchestra's baseline."""
