"""BYOL and FedBYOL: one view predicts the target network's projection of the other view.

Grill et al., "Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning"; CP-CFL's
second pretrainer (section 3.3.2) and Orchestra's baseline f-BYOL. No gradient reaches the target
network, which follows the online one by EMA.
"""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from coterie.contract import Entry, Role, StateRoles, Tensors
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.losses.cosine import normalised_error
from coterie.modules.pretraining import (
    ONLINE,
    PREDICTOR,
    CrossSilo,
    Followed,
    FollowedConfig,
    PredictedPretraining,
    PredictionConfig,
    PredictorConfig,
    TwoViewsPredicted,
)


class BootstrapConfig(PredictorConfig, FollowedConfig):
    """Options of BYOL's networks."""

    momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.9
    """EMA of the target network, β."""


class BYOLConfig(BootstrapConfig, PredictionConfig):
    """Options of BYOL and FedBYOL."""

    target_network: Literal["kept", "averaged"] = "kept"
    """`kept`: each client has its own, which equals the global online network at its first task;
    `averaged`: sent and averaged with the online network. With `averaged` and
    `predictor_threshold=null` clients keep nothing."""


class Bootstrap(Followed, TwoViewsPredicted):
    """The online network with its predictor, and the target network that it predicts."""

    config: BootstrapConfig

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return ‖p̄_a − z̄'_b‖² + ‖p̄_b − z̄'_a‖² of unit vectors, eq. (2) and its mirror image."""
        p_a, p_b = (through(self.predict, view) for view in views)
        z_a, z_b = (through(self.target, view) for view in views)
        loss = normalised_error(p_a, z_b) + normalised_error(p_b, z_a)
        return self.logged({"loss": loss})

    def predict(self, view: Tensor) -> Tensor:
        """Return the online network's predictions of the target's projections of the other view."""
        predicted: Tensor = self.predictor(self.online(view))
        return predicted


KEPT_TARGET = Entry(pattern="target.*", role=Role.KEEP)


class BYOL(PredictedPretraining[BYOLConfig, Bootstrap]):
    """Predicts a moving-average target network, centralised.

    Encoder, projector and predictor are averaged, with their running statistics; `target_network`
    says what happens to the target network. Under `predictor_threshold` a client whose encoder
    moved far keeps its own predictor for its next task, and still sends it to be averaged. The
    optimiser is reset.
    """

    vmappable = True
    network = Bootstrap

    class Config(BYOLConfig):
        """BYOL's configuration, as CP-CFL pretrains with it."""

    @property
    def roles(self) -> StateRoles:
        """The roles; the config says whether the target is kept or averaged."""
        averaged = Entry(pattern="target.*", role=Role.AVERAGE, slot="target")
        kept = self._config.target_network == "kept"
        return StateRoles(*ONLINE, PREDICTOR, KEPT_TARGET if kept else averaged)

    def restore(self, module: Bootstrap, kept: Tensors) -> None:
        """Set the target: at first the global online network, later the client's own."""
        if self._config.target_network == "kept":
            module.start_target()
        super().restore(module, kept)


class FedBYOL(BYOL):
    """Predicts a moving-average target network; encoder and heads averaged."""

    vmappable = True

    class Config(CrossSilo, BYOLConfig):
        """FedBYOL's configuration: the cross-silo setting of Orchestra's baselines."""

        momentum: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
        """EMA of the target network, β; 0.996 across devices."""
        predictor_threshold: Annotated[float, Field(ge=0.0)] | None = 0.4
        """FedU's rule: a client whose encoder moved at least this far in its last task keeps its
        own predictor; null: all clients take the global one."""
