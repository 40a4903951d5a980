"""A classifier that clients train on their labels, for FedAvg, CP-CFL and IFCA.

An encoder, a head, the cross-entropy of one view of each sample, and SGD or Adam. Tun et al.,
"Contrastive encoder pre-training-based clustered federated learning for heterogeneous data"
(CP-CFL), eq. (4) and section 4.4: heads of up to three hidden layers.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor, nn

from coterie.config.component import target_of
from coterie.contract import Entry, Role, StateRoles, Task
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import Clusterer, to_unit
from coterie.errors import ConfigError
from coterie.gradcache import UNCOUPLED, Terms
from coterie.modules.averaging import AveragingConfig, sgd_or_adam
from coterie.modules.client_module import ClientModule
from coterie.networks.encoders import dense
from coterie.networks.views import seeded_view
from coterie.precision import cross_entropy

_OWN = "it is a key of your own LightningModule; give experiment=lightning"
HIDDEN = (256, 128, 64)
"""Widths of a head's hidden layers, from the first on."""


class ClassificationConfig(AveragingConfig):
    """The head and its optimiser."""

    absent: ClassVar[Mapping[str, str]] = {
        "micro_batch_size": UNCOUPLED,
        "strategy": _OWN,
        "personal": _OWN,
        "keep_optimizer": _OWN,
    }

    optimizer: Literal["sgd", "adam"] = "sgd"
    """SGD or Adam; its state starts afresh in each task of a client."""
    learning_rate: PositiveFloat = 0.1
    """The optimiser's learning rate η."""
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """SGD's momentum; Adam ignores it."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """The optimiser's weight decay."""
    head_layers: Annotated[int, Field(ge=0, le=len(HIDDEN))] = 0
    """Hidden layers of the head, with ReLU: none, 256, 256-128 or 256-128-64 units (θ_c to θ_c-3 in
    CP-CFL, which leaves the widths open)."""


class Classification(ClientModule):
    """An encoder, a head of one logit per class, and the cross-entropy of a view of each sample.

    Raises:
        ConfigError: If the data has fewer than two classes.
    """

    representation = "encoder"
    config: ClassificationConfig

    def __init__(self, config: ClassificationConfig, task: Task) -> None:
        super().__init__(config, task)
        if task.classes < 2:
            name = target_of(config).rpartition(":")[2]
            raise ConfigError(
                f"method={name}: the data has {task.classes} classes; choose data with two or more."
            )
        self.encoder = task.encoder.build(task.shape)
        width: int = self.encoder.features  # type: ignore[assignment]  # an int, not a submodule
        self.classifier = head(width, task.classes, config.head_layers)
        self.augment = task.augmentation.build(task.shape)
        self._encoder_epochs: int | None = None
        self._epoch = 0
        self.to(task.dtype)

    def start(self, encoder_epochs: int | None) -> None:
        """Set the number of epochs that train the encoder in this task; None means all.

        After these epochs it is frozen: no gradient, and eval mode, so that running statistics
        stay too.
        """
        self._encoder_epochs, self._epoch = encoder_epochs, 0

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD or Adam over all parameters that take a gradient."""
        return sgd_or_adam(self, self.config.learning_rate, self.config.momentum)

    def on_train_epoch_start(self) -> None:
        """Switch to train mode, whatever came before; a frozen encoder stays in eval mode."""
        super().on_train_epoch_start()
        if self._encoder_epochs is None:
            return
        if self._epoch >= self._encoder_epochs:
            self.encoder.eval().requires_grad_(False)
        self._epoch += 1

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw one view of each sample, on the device."""
        views = seeded_view(self.augment, to_unit(batch["samples"]), batch_seed(batch))
        return views.to(self.dtype), batch["labels"]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Terms:
        """Return the cross-entropy of one batch of views and classes."""
        views, labels = batch
        return self.logged({"loss": cross_entropy(self.classifier(self.encoder(views)), labels)})

    def clusterer(self) -> Clusterer:
        """Return the encoder and the head; the probabilities are those of the classes."""
        probabilities = nn.Sequential(self.classifier, nn.Softmax(dim=1))
        return Clusterer(self.encoder, probabilities, classifies=True)


PARTS = frozenset({"encoder", "classifier"})

ROLES = StateRoles(
    *(Entry(pattern=f"{part}.*", role=Role.AVERAGE, slot=part) for part in sorted(PARTS)),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""All trained entries are averaged; clients keep nothing."""


def head(width: int, classes: int, layers: int) -> nn.Module:
    """Build a classifier that maps representations (n, width) to logits (n, classes)."""
    if not layers:
        return nn.Linear(width, classes)
    return nn.Sequential(*dense(width, list(HIDDEN[:layers]), classes))
