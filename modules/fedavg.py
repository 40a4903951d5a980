"""FedAvg: a classifier trained on every client's labels, and averaged.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629), Algorithm 1: the supervised yardstick of the other methods.
"""

from typing import Annotated, Any

import torch
from lightning import LightningModule
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from coterie.contract import Entry, Rule, ServerState, StateRules, Task
from coterie.errors import ConfigError
from coterie.networks.clusterer import Clusterer, to_unit
from coterie.networks.views import seeded_view
from modules.averaging import Averaging, AveragingConfig

PARTS = frozenset({"encoder", "classifier"})


class Classification(LightningModule):
    """An encoder, a linear classifier, and the cross-entropy of one view of each sample."""

    def __init__(self, config: "FedAvg.Config", task: Task) -> None:
        super().__init__()
        if task.classes < 2:
            raise ConfigError(
                f"method=FedAvg: the data has {task.classes} classes; choose data with two or more."
            )
        self.encoder = task.encoder.build(task.shape)
        width: int = self.encoder.features  # type: ignore[assignment]  # an int, not a submodule
        self.classifier = nn.Linear(width, task.classes)
        self.augment = task.augmentation.build(task.shape)
        self.config = config
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD over everything."""
        config = self.config
        return torch.optim.SGD(
            self.parameters(),
            lr=config.learning_rate,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
        )

    def on_train_epoch_start(self) -> None:
        """Train mode, whatever the model was used for before."""
        self.train()

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw one view of each sample, on the device."""
        views = seeded_view(self.augment, to_unit(batch["samples"]), batch["seed"])
        return views.to(self.classifier.weight.dtype), batch["labels"]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """The cross-entropy of one batch of views and classes."""
        views, labels = batch
        return functional.cross_entropy(self.classifier(self.encoder(views)), labels)


RULES = StateRules(
    *(Entry(pattern=f"{part}.*", rule=Rule.AVERAGE, slot=part) for part in sorted(PARTS)),
    Entry(pattern="augment.*", rule=Rule.RESET),
)
"""Everything that is learned is averaged; clients keep nothing."""


class FedAvg(Averaging["FedAvg.Config", Classification]):
    """Federated averaging of a classifier."""

    needs_labels = True
    stage = "supervised"
    rules = RULES

    class Config(AveragingConfig):
        """FedAvg's configuration, in the paper's terms: η, E, B and C."""

        learning_rate: PositiveFloat = 0.1
        """SGD's learning rate η."""
        momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
        """SGD's momentum, which starts from zero in each turn of a client."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
        """SGD's weight decay."""
        participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
        """Share of the clients in each round, C."""
        rounds: PositiveInt = 50
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 1
        """Local epochs a round, E."""
        batch_size: Annotated[int, Field(ge=2)] = 32
        """Samples a batch, B."""

    def build(self) -> Classification:
        """The classifier and its loss."""
        return Classification(self._config, self._task)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The global encoder and classifier, whose probabilities are those of the classes."""
        module = self.global_module(server)
        head = nn.Sequential(module.classifier, nn.Softmax(dim=1))
        return Clusterer(module.encoder, head, classifies=True)
