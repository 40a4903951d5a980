"""SimSiam and FedSimSiam: each view's projection predicted from the other's, without negatives.

Chen and He, "Exploring Simple Siamese Representation Learning"; CP-CFL's third pretrainer (section
3.3.3) and Orchestra's baseline f-SimSiam. The stop-gradient alone keeps it from collapsing.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import StateRules, Task
from coterie.gradcache import Part, Terms, batch_loss
from coterie.losses.cosine import negative_cosine
from modules.pretraining import (
    ONLINE,
    PREDICTOR,
    PredictedPretraining,
    PredictionConfig,
    TwoViewsPredicted,
    Views,
)


class Siamese(TwoViewsPredicted):
    """One network with a predictor, and the loss over two views."""

    def __init__(self, config: PredictionConfig, task: Task) -> None:
        super().__init__(config, task)
        self.to(task.dtype)

    def training_step(self, batch: Views, batch_idx: int) -> dict[str, Tensor]:
        """½ D(p_a, z_b) + ½ D(p_b, z_a), eq. (2), with no gradient through z."""
        parts = {
            name: Part(self._represent, [self.online, self.predictor], view)
            for name, view in zip("ab", batch, strict=True)
        }
        return batch_loss(parts, self._terms, self.config.micro_batch_size)

    def _represent(self, view: Tensor) -> tuple[Tensor, Tensor]:
        z = self.online(view)
        return z, self.predictor(z)

    def _terms(self, represented: Mapping[str, tuple[Tensor, Tensor]]) -> Terms:
        (z_a, p_a), (z_b, p_b) = represented["a"], represented["b"]
        return {"loss": 0.5 * (negative_cosine(p_a, z_b) + negative_cosine(p_b, z_a))}


class SimSiam(PredictedPretraining[PredictionConfig, Siamese]):
    """SimSiam, as a rule on one client that has all data.

    Everything that is learned is averaged. Clients keep nothing, but under `predictor_threshold`
    those whose encoder moved far keep their own predictor for their next turn.
    """

    rules = StateRules(*ONLINE, PREDICTOR)

    class Config(PredictionConfig):
        """SimSiam's configuration, as CP-CFL pretrains with it."""

    def build(self) -> Siamese:
        """The network and its loss."""
        return Siamese(self._config, self._task)


class FedSimSiam(SimSiam):
    """SimSiam by federated averaging of encoder, projector and predictor."""

    class Config(PredictionConfig):
        """FedSimSiam's configuration: the cross-silo setting of Orchestra's baselines."""

        optimizer: Literal["adam", "sgd"] = "sgd"
        """SGD with momentum (Orchestra's baselines) or Adam (CP-CFL)."""
        learning_rate: PositiveFloat = 0.03
        """The optimiser's learning rate; 0.01 across devices."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 1e-4
        """The optimiser's weight decay."""
        predictor_threshold: Annotated[float, Field(ge=0.0)] | None = 0.4
        """FedU's rule: a client whose encoder moved at least this far in its last turn goes on with
        its own predictor; null: all take the global one."""
        rounds: PositiveInt = 100
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 10
        """Local epochs a round."""
        batch_size: Annotated[int, Field(ge=2)] = 256
        """Samples a batch, n; 16 across devices."""
