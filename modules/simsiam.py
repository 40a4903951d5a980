"""SimSiam and FedSimSiam: each view predicts the other's projection, without negatives.

Chen and He, "Exploring Simple Siamese Representation Learning"; CP-CFL's third pretrainer (section
3.3.3) and Orchestra's baseline f-SimSiam. The stop-gradient alone prevents collapse.
"""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from coterie.contract import StateRoles
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.cosine import negative_cosine
from coterie.modules.pretraining import (
    ONLINE,
    PREDICTOR,
    CrossSilo,
    PredictedPretraining,
    PredictionConfig,
    TwoViewsPredicted,
)
from coterie.networks.heads import ProjectorNorm


class SimSiamConfig(PredictionConfig):
    """Options of SimSiam and FedSimSiam."""

    projector_norm: ProjectorNorm = "all"
    """BatchNorm in the projector: `none`, `hidden` after its first layer, or `all`, where one
    without parameters also follows the last layer, as in SimSiam's paper."""


class SimSiamModel(TwoViewsPredicted):
    """One network with a predictor, and the loss over two views."""

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return ½ D(p_a, z_b) + ½ D(p_b, z_a), eq. (2), with no gradient through z."""
        (z_a, p_a), (z_b, p_b) = (through(self.project, view) for view in views)
        return self.logged({"loss": 0.5 * (negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a))})

    def project(self, view: Tensor) -> tuple[Tensor, Tensor]:
        """Return projections and predictions of a view."""
        z = self.online(view)
        return z, self.predictor(z)


class SimSiam(PredictedPretraining[SimSiamConfig, SimSiamModel]):
    """Predicts the other view, without negatives, centralised.

    All trained entries are averaged. Clients keep nothing; only under `predictor_threshold` a
    client whose encoder moved far keeps its own predictor for its next task.
    """

    vmappable = True
    network = SimSiamModel
    roles = StateRoles(*ONLINE, PREDICTOR)

    class Config(SimSiamConfig):
        """SimSiam's configuration, as CP-CFL pretrains with it."""


class FedSimSiam(SimSiam):
    """Predicts the other view, without negatives; encoder and heads averaged."""

    vmappable = True

    class Config(CrossSilo, SimSiamConfig):
        """FedSimSiam's configuration: the cross-silo setting of Orchestra's baselines."""

        predictor_threshold: Annotated[float, Field(ge=0.0)] | None = 0.4
        """FedU's rule: a client whose encoder moved at least this far in its last task keeps its
        own predictor; null: all clients take the global one."""
