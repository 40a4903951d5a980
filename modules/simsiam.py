"""SimSiam and FedSimSiam: each view predicts the other's projection, without negatives.

Chen and He, "Exploring Simple Siamese Representation Learning"; CP-CFL's third pretrainer (section
3.3.3) and Orchestra's baseline f-SimSiam. The stop-gradient alone prevents collapse.
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field
from torch import Tensor

from coterie.contract import StateRoles, Task
from coterie.gradcache import Terms, batch_loss
from coterie.losses.cosine import negative_cosine
from coterie.modules.pretraining import (
    ONLINE,
    PREDICTOR,
    CrossSilo,
    PredictedPretraining,
    PredictionConfig,
    TwoViewsPredicted,
    Views,
)
from coterie.modules.view_pairs import pair_parts
from coterie.networks.heads import ProjectorNorm


class SimSiamConfig(PredictionConfig):
    """Options of SimSiam and FedSimSiam."""

    projector_norm: ProjectorNorm = "all"
    """BatchNorm in the projector: `none`, `hidden` behind its first layer, or `all`, where one
    without parameters follows the last layer too, as in SimSiam's paper."""


class SimSiamModel(TwoViewsPredicted):
    """One network with a predictor, and the loss over two views."""

    def __init__(self, config: SimSiamConfig, task: Task) -> None:
        super().__init__(config, task)
        self.to(task.dtype)

    def training_step(self, batch: Views, batch_idx: int) -> dict[str, Tensor]:
        """½ D(p_a, z_b) + ½ D(p_b, z_a), eq. (2), with no gradient through z."""
        parts = pair_parts(self._represent, [self.online, self.predictor], batch)
        return batch_loss(parts, self._terms, self.config.micro_batch_size)

    def _represent(self, view: Tensor) -> tuple[Tensor, Tensor]:
        z = self.online(view)
        return z, self.predictor(z)

    def _terms(self, represented: Mapping[str, tuple[Tensor, Tensor]]) -> Terms:
        (z_a, p_a), (z_b, p_b) = represented["a"], represented["b"]
        return {"loss": 0.5 * (negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a))}


class SimSiam(PredictedPretraining[SimSiamConfig, SimSiamModel]):
    """Predicts the other view, without negatives, centralised.

    All trained entries are averaged. Clients keep nothing; only under `predictor_threshold` a
    client whose encoder moved far keeps its own predictor for its next task.
    """

    vmappable = True
    roles = StateRoles(*ONLINE, PREDICTOR)

    class Config(SimSiamConfig):
        """SimSiam's configuration, as CP-CFL pretrains with it."""

    def build(self) -> SimSiamModel:
        """The network and its loss."""
        return SimSiamModel(self._config, self._task)


class FedSimSiam(SimSiam):
    """Predicts the other view, without negatives; encoder and heads averaged."""

    vmappable = True

    class Config(CrossSilo, SimSiamConfig):
        """FedSimSiam's configuration: the cross-silo setting of Orchestra's baselines."""

        predictor_threshold: Annotated[float, Field(ge=0.0)] | None = 0.4
        """FedU's rule: a client whose encoder moved at least this far in its last task keeps its
        own predictor; null: all clients take the global one."""
