"""RotPred: clients predict by how many quarter turns an image was rotated.

Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (ICLR 2018);
Orchestra's baseline RotPred: one random rotation of each plain image, by federated averaging.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.contract import Entry, Role, ServerState, StateRoles, Task
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import Clusterer, UnitProjection, parameter_dtype, to_unit
from coterie.gradcache import UNCOUPLED, Terms
from coterie.modules.averaging import Averaging, AveragingConfig, sgd_or_adam
from coterie.modules.client_module import ClientModule
from coterie.modules.orchestra_model import projected_encoder
from coterie.modules.pretraining import CrossSilo
from coterie.modules.rotation import TURNS, check_rotatable, drawn_turns, rotated
from coterie.precision import cross_entropy


class RotationPrediction(ClientModule):
    """Encoder, projector and a linear head over the four rotations."""

    config: "RotPred.Config"

    def __init__(self, config: "RotPred.Config", task: Task) -> None:
        super().__init__(config, task)
        check_rotatable(task.shape, "RotPred")
        self.online = projected_encoder(task, config.hidden, config.projection)
        self.rotation = nn.Linear(config.projection, TURNS)
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam or SGD over all parameters that take a gradient."""
        return sgd_or_adam(self, self.config.learning_rate, self.config.sgd_momentum)

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Rotate each image by a random one of the four rotations."""
        images = to_unit(batch["samples"], parameter_dtype(self))
        turns = drawn_turns(len(images), batch_seed(batch)).to(images.device)
        return rotated(images, turns), turns

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Terms:
        """Return the cross-entropy of the rotations."""
        images, turns = batch
        return self.logged({"loss": cross_entropy(self.rotation(self.online(images)), turns)})


class RotPred(Averaging["RotPred.Config", RotationPrediction]):
    """Predicts by how many quarter turns an image was rotated; all averaged.

    Clients keep nothing.
    """

    stage = "representation"
    network = RotationPrediction
    roles = StateRoles(
        Entry(pattern="online.encoder.*", role=Role.AVERAGE, slot="encoder"),
        Entry(pattern="online.projector.*", role=Role.AVERAGE, slot="projector"),
        Entry(pattern="rotation.*", role=Role.AVERAGE, slot="rotation"),
    )

    class Config(CrossSilo, AveragingConfig):
        """RotPred's configuration: the cross-silo setting of Orchestra's baselines."""

        absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": UNCOUPLED}

        sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
        """SGD's momentum; Adam ignores it."""
        hidden: PositiveInt = 512
        """Width of the projector's hidden layer."""
        projection: PositiveInt = 512
        """Width of the projector's output."""

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, with the projector's outputs."""
        online = self.global_module(server).online
        return Clusterer(online.encoder, projection=UnitProjection(online.projector))
