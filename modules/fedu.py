"""FedU: BYOL on clients whose target networks stay local, with a predictor that follows divergence.

Zhuang et al., "Collaborative Unsupervised Visual Representation Learning from Decentralized Data"
(ICCV 2021), section 3: the online encoder and projector are averaged, the target network stays with
its client, and the predictor is the global one only where the encoder has moved little.
"""

import math
from typing import Annotated, Any, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch.optim.lr_scheduler import LambdaLR

from coterie.contract import StateRoles, Tensors
from coterie.modules.byol import KEPT_TARGET, Bootstrap, BootstrapConfig
from coterie.modules.pretraining import (
    ONLINE,
    PREDICTOR,
    CrossSilo,
    PredictedPretraining,
    PredictionConfig,
)

ROLES = StateRoles(*ONLINE, PREDICTOR, KEPT_TARGET)


class PaperConfig(CrossSilo, BootstrapConfig):
    """Defaults of FedU's and FedEMA's papers: five clients of CIFAR-10, ResNet-18."""

    learning_rate: PositiveFloat = 0.032
    """The optimiser's learning rate."""
    decay_rounds: PositiveInt | None = None
    """Rounds over which a cosine lowers the rate to 0, as many as `rounds` or more, as in the
    papers, which have 100; by default it is constant."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
    epochs: PositiveInt = 5
    """Local epochs per round, E."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Samples per batch, B."""
    hidden: PositiveInt = 4096
    projection: PositiveInt = 2048
    bottleneck: PositiveInt = 4096
    momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """EMA of the target network, m."""

    @model_validator(mode="after")
    def _check_decay(self) -> Self:
        if self.decay_rounds is not None and self.decay_rounds < self.rounds:
            raise ValueError(
                f"decay_rounds={self.decay_rounds} with rounds={self.rounds}: the rate is 0 after "
                f"decay_rounds; set that to {self.rounds} in a new run, or null for a constant rate"
            )
        return self


class Decayed(Bootstrap):
    """BYOL's networks, with a learning rate that falls by a cosine over the rounds.

    Attributes:
        round: The round at which training begins, from 1; it has all of the rate.
    """

    config: PaperConfig
    round = 1

    def configure_optimizers(self) -> Any:
        """Return Adam or SGD, with the schedule if there is one."""
        optimizer, total = super().configure_optimizers(), self.config.decay_rounds
        if total is None:
            return optimizer
        first = self.round - 1
        schedule = LambdaLR(optimizer, lambda n: (1 + math.cos(math.pi * (first + n) / total)) / 2)
        each = {"scheduler": schedule, "interval": "epoch", "frequency": self.config.epochs}
        return {"optimizer": optimizer, "lr_scheduler": each}


class FedU(PredictedPretraining["FedU.Config", Decayed]):
    """BYOL with local targets; a client's predictor follows its divergence.

    Clients keep their target network and, after a task in which the encoder moved by
    `predictor_threshold` or more, their predictor; both are sent to nobody else in between.
    """

    network = Decayed
    roles = ROLES

    class Config(PaperConfig, PredictionConfig):
        """FedU's configuration."""

        predictor_threshold: Annotated[float, Field(ge=0.0)] | None = 0.4
        """Divergence from which a client keeps its own predictor for its next task; null: all
        clients take the global one."""

    def enter_round(self, module: Decayed, round_: int) -> None:
        """Set the learning-rate schedule to this round."""
        module.round = round_

    def restore(self, module: Decayed, kept: Tensors) -> None:
        """Set the target: at first the global online network, later the client's own."""
        module.start_target()
        super().restore(module, kept)
