"""MOON: a classifier's projections stay near the global model's and away from its last ones.

Li et al., "Model-Contrastive Federated Learning" (CVPR 2021), Algorithm 1: federated averaging in
which each client adds a contrastive term between models to its cross-entropy.
"""

from collections import OrderedDict
from copy import deepcopy
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.contract import (
    Entry,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    load_tensors,
)
from coterie.contract.clusterer import Clusterer
from coterie.gradcache import Terms
from coterie.losses.cosine import model_contrast
from coterie.modules.averaging import Averaging
from coterie.modules.classification import Classification, ClassificationConfig, head
from coterie.networks.heads import Projector
from coterie.precision import cross_entropy


class ModelContrast(Classification):
    """Encoder, projector and classifier, beside the frozen global and the client's last model."""

    frozen = ("global_model", "previous")
    config: "MOON.Config"

    def __init__(self, config: "MOON.Config", task: Task) -> None:
        super().__init__(config, task)
        width: int = self.encoder.features  # type: ignore[assignment]  # an int, not a submodule
        self.projector = Projector(width, config.hidden, config.projection)
        self.classifier = head(config.projection, task.classes, config.head_layers)
        branch = OrderedDict[str, nn.Module](encoder=self.encoder, projector=self.projector)
        self.global_model = deepcopy(nn.Sequential(branch)).requires_grad_(False)
        self.previous = deepcopy(self.global_model)
        self.to(task.dtype)

    def copy_into(self, frozen: nn.Module) -> None:
        """Copy encoder and projector into a frozen model."""
        frozen.get_submodule("encoder").load_state_dict(self.encoder.state_dict())
        frozen.get_submodule("projector").load_state_dict(self.projector.state_dict())

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Terms:
        """Return ℓ_sup + μ ℓ_con of one batch of views and classes, eq. (4), and both terms."""
        views, labels = batch
        z = self.projector(self.encoder(views))
        with torch.no_grad():
            z_world, z_previous = self.global_model(views), self.previous(views)
        supervised = cross_entropy(self.classifier(z), labels)
        contrast = model_contrast(z, z_world, z_previous, self.config.temperature)
        loss = supervised + self.config.contrast_weight * contrast
        return self.logged({"loss": loss, "supervised": supervised, "contrast": contrast})

    def clusterer(self) -> Clusterer:
        """Return the encoder and the classifier; the probabilities are those of the classes."""
        probabilities = nn.Sequential(self.projector, self.classifier, nn.Softmax(dim=1))
        return Clusterer(self.encoder, probabilities, classifies=True)


PARTS = ("encoder", "projector", "classifier")

ROLES = StateRoles(
    *(Entry(pattern=f"{part}.*", role=Role.AVERAGE, slot=part) for part in PARTS),
    Entry(pattern="previous.*", role=Role.KEEP),
    Entry(pattern="global_model.*", role=Role.RESET),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""The model is averaged, the last one stays with its client."""


class MOON(Averaging["MOON.Config", ModelContrast]):
    """Supervised, with a contrastive term between the local, the global and the last model.

    Clients keep the model that they last trained.
    """

    needs_labels = True
    stage = "supervised"
    metrics = frozenset({"loss", "supervised", "contrast"})
    network = ModelContrast
    roles = ROLES

    class Config(ClassificationConfig):
        """MOON's configuration; the defaults are the paper's for CIFAR-10."""

        uncoupled: ClassVar[bool] = True

        contrast_weight: Annotated[float, Field(ge=0.0)] = 5.0
        """μ of the model-contrastive term; 1 for CIFAR-100 and Tiny-ImageNet. 0 is FedAvg."""
        temperature: PositiveFloat = 0.5
        """τ."""
        hidden: PositiveInt = 512
        """Width of the projector's hidden layer."""
        projection: PositiveInt = 256
        """Width of the projector's output, by which models are compared."""
        learning_rate: PositiveFloat = 0.01
        momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
        weight_decay: Annotated[float, Field(ge=0.0)] = 1e-5
        rounds: PositiveInt = 100
        epochs: PositiveInt = 10
        """Local epochs per round, E."""
        batch_size: Annotated[int, Field(ge=2)] = 64
        """Samples per batch, B."""

    def restore(self, module: ModelContrast, kept: Tensors) -> None:
        """Set the last model to the client's own, or in its first task to the global one."""
        module.copy_into(module.global_model)
        module.copy_into(module.previous)
        load_tensors(module, kept)

    def keep(self, module: ModelContrast, slots: Slots) -> Tensors:
        """Return the model just trained."""
        module.copy_into(module.previous)
        return self.roles.kept(module)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder and classifier; the probabilities are those of the classes."""
        return self.global_module(server).clusterer()
