"""IDFD: samples are told apart against a client's memory bank, and features are decorrelated.

Tao, Takagi and Nakata, "Clustering-friendly Representation Learning via Instance Discrimination and
Feature Decorrelation" (ICLR 2021), federated by averaging. k-means clusters the features, which
have unit length. The bank has one vector per sample and never leaves its client.
"""

from typing import Annotated, Any

import torch
from jaxtyping import Float, Float64
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn

from coterie.contract import (
    Client,
    Outcome,
    Phase,
    ServerState,
    Slots,
    StateRoles,
    Task,
    derive_seed,
)
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import Clusterer, parameter_dtype
from coterie.errors import ConfigError
from coterie.gradcache import MicroBatched, Terms, Views, gradient_cached, through
from coterie.losses.instance import feature_decorrelation, instance_discrimination
from coterie.modules.averaging import Averaging, AveragingConfig
from coterie.modules.client_module import ClientModule
from coterie.modules.pretraining import ONLINE, Branch
from coterie.networks.heads import UnitLength
from coterie.networks.views import LazyViews
from coterie.precision import unit_rows

BANK = "bank"


class InstanceDiscrimination(ClientModule):
    """The network, whose features have unit length, and both losses.

    Attributes:
        bank: Vectors (samples, projection) of unit length, by the samples' positions. It is not
            part of the state, since clients differ in size.
    """

    representation = "online"
    config: "IDFD.Config"

    def __init__(self, config: "IDFD.Config", task: Task) -> None:
        super().__init__(config, task)
        self.online = Branch(
            task, lambda width: nn.Sequential(nn.Linear(width, config.projection), UnitLength())
        )
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)
        self.start(torch.zeros(0, config.projection))

    def start(self, bank: Float[Tensor, "m d"]) -> None:
        """Take a copy of this bank, in float32 or wider."""
        wide = torch.promote_types(parameter_dtype(self), torch.float32)
        self.bank = bank.to(self.device, wide, copy=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return SGD over all parameters that take a gradient."""
        config = self.config
        learned = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.SGD(
            learned, config.learning_rate, config.sgd_momentum, weight_decay=config.weight_decay
        )

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Add the batch's seed and, under a plain Trainer, random vectors for new samples' rows.

        Raises:
            ConfigError: If a loader gives no positions.
        """
        batch = super().on_before_batch_transfer(batch, dataloader_idx)
        if "positions" not in batch:
            raise ConfigError(
                "method=IDFD: a batch has no positions, by which samples find their rows of the "
                'bank; give it those of its samples, such as {"samples": …, "positions": …}.'
            )
        seed, missing = batch_seed(batch), int(batch["positions"].max()) + 1 - len(self.bank)
        if missing > 0:
            drawn = unit_vectors(missing, self.config.projection, seed).to(self.bank)
            self.start(torch.cat([self.bank, drawn]))
        return {**batch, "seed": seed}

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw one view of each sample, on the device."""
        samples, seed = batch["samples"], derive_seed(batch["seed"], "view")
        view = LazyViews(self.augment, samples, seed, parameter_dtype(self))
        whole = self.config.micro_batch_size is None
        return view[:] if whole else view, batch["positions"]

    @gradient_cached
    def training_step(self, rows: Views, batch_idx: int) -> Terms:
        """Return L_I + α L_F of one batch, and both terms."""
        config = self.config
        self.bank = self.bank.to(self.device)
        f, positions = through(self.online, rows[0]), through(nn.Identity(), rows[1])
        self._features = f.detach()
        instance = instance_discrimination(f, self.bank, positions, config.temperature)
        decorrelation = feature_decorrelation(f, config.decorrelation_temperature)
        loss = instance + config.decorrelation * decorrelation
        return self.logged({"loss": loss, "instance": instance, "decorrelation": decorrelation})

    @torch.no_grad()
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Update v_i ← m v_i + (1 − m) f_i, at unit length; f are the features of the loss."""
        rows, m = batch[1], self.config.bank_momentum
        self.bank[rows] = unit_rows(m * self.bank[rows] + (1 - m) * self._features)


class IDFD(Averaging["IDFD.Config", InstanceDiscrimination]):
    """Tells samples apart with decorrelated features; network averaged. Clients keep their bank."""

    stage = "representation"
    network = InstanceDiscrimination
    metrics = frozenset({"loss", "instance", "decorrelation"})
    roles = StateRoles(*ONLINE)

    class Config(AveragingConfig, MicroBatched):
        """IDFD's configuration; the defaults are the authors' code's for CIFAR-10."""

        projection: PositiveInt = 128
        """Width of the features."""
        temperature: PositiveFloat = 1.0
        """τ of instance discrimination."""
        decorrelation_temperature: PositiveFloat = 2.0
        """τ₂ of feature decorrelation."""
        decorrelation: Annotated[float, Field(ge=0.0)] = 1.0
        """Weight α of feature decorrelation; 0 is instance discrimination alone (ID)."""
        bank_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.5
        """m: how much of a sample's vector in the bank stays when its feature is added."""
        learning_rate: PositiveFloat = 0.03
        """SGD's learning rate."""
        sgd_momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
        """SGD's momentum."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
        """SGD's weight decay."""
        rounds: PositiveInt = 100
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 20
        """Local epochs per round; 100 rounds of 20 are the authors' 2,000 epochs."""
        batch_size: Annotated[int, Field(ge=2)] = 128

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train from the global network, with the client's bank, random in its first task."""
        bank = (client.state or {}).get(BANK)
        if bank is None:
            bank = unit_vectors(len(client.data), self._config.projection, client.seed)
        client.module(self.stage, self.build).start(bank)
        return super().client(client, phase, slots)

    def keep(self, module: InstanceDiscrimination, slots: Slots) -> dict[str, Tensor]:
        """Keep the bank."""
        return {BANK: module.bank.cpu()}

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global network, whose features have unit length."""
        return Clusterer(self.global_module(server).online)


def unit_vectors(count: int, width: int, seed: int) -> Float64[Tensor, "m d"]:
    """Draw vectors of unit length, all directions equally likely."""
    draw = torch.Generator().manual_seed(derive_seed(seed, BANK))
    # Normal numbers in float32 differ in their last bits between kinds of CPUs.
    return unit_rows(torch.randn(count, width, dtype=torch.float64, generator=draw))
