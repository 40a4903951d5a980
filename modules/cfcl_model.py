"""CF-CL's LightningModule: the triplet loss, and the regulariser on received embeddings.

CF-CL, eq. (1), (4) and (23).
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from coterie.contract import (
    ClientData,
    Task,
    Tensors,
    derive_seed,
    load_optimizer,
    optimizer_tensors,
)
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import parameter_dtype, to_unit
from coterie.gradcache import Terms
from coterie.losses.triplet import received_loss, staleness_weight, triplet_losses
from coterie.modules.cfcl_timeline import CFCLConfig
from coterie.modules.client_module import ClientModule
from coterie.networks.views import seeded_view


@dataclass(frozen=True, kw_only=True)
class Local:
    """The inputs of a device's training between two events.

    Attributes:
        data: D_i^t, from which negatives are drawn; by default each batch itself.
        step: The first time step t.
        adam: Adam's state.
        received: Embeddings from neighbours (k, d), constants.
        margin: m_reg.
    """

    data: ClientData | None = None
    step: int = 0
    adam: Tensors = field(default_factory=dict)
    received: Tensor | None = None
    margin: float = 0.0


class TripletModel(ClientModule):
    """One device's encoder φ.

    Anchors, positives and negatives pass the encoder as one batch, so BatchNorm sees all of them.
    """

    representation = "encoder"
    config: CFCLConfig

    def __init__(self, config: CFCLConfig, task: Task) -> None:
        super().__init__(config, task)
        self.encoder = task.encoder.build(task.shape)
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)
        self.begin(Local())

    def begin(self, local: Local) -> None:
        """Set the inputs of the next fit."""
        self._local, self._done = local, 0
        self._adam: torch.optim.Adam | None = None

    def remember(self) -> dict[str, Tensor]:
        """Return Adam's state after training."""
        return {} if self._adam is None else optimizer_tensors(self, self._adam)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam, which continues from its remembered state."""
        self._adam = torch.optim.Adam(self.encoder.parameters(), lr=self.config.learning_rate)
        load_optimizer(self, self._adam, self._local.adam)
        return self._adam

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw a negative for each anchor, uniformly from the device's other samples."""
        batch = super().on_before_batch_transfer(batch, dataloader_idx)
        data, seed = self._local.data, batch_seed(batch)
        if data is None:
            data, positions = ClientData.of_batch(batch), torch.arange(len(batch["samples"]))
        else:
            positions = batch["positions"]
        draw = torch.Generator().manual_seed(derive_seed(seed, "negatives"))
        others = torch.randint(len(data) - 1, (len(positions),), generator=draw)
        others += others >= positions
        return {**batch, "seed": seed, "negatives": data.take(others.numpy())}

    @torch.no_grad()
    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Return anchors and negatives without augmentation, and one view of each anchor."""
        dtype = parameter_dtype(self)
        seed = derive_seed(batch["seed"], "view", 0)
        views = seeded_view(self.augment, to_unit(batch["samples"]), seed).to(dtype)
        return to_unit(batch["samples"], dtype), views, to_unit(batch["negatives"], dtype)

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Terms:
        """Return eq. (23) of one batch of triplets, and its two terms."""
        anchors, positives, negatives = self.encoder(torch.cat(batch)).chunk(3)
        triplet = triplet_losses(anchors, positives, negatives, self.config.margin).mean()
        weight = self.weight
        if weight == 0:  # exactly the loss without the term
            none = torch.zeros_like(triplet)
            return self.logged({"loss": triplet, "triplet": triplet, "regulariser": none})
        received, margin = self._local.received, self._local.margin
        assert received is not None
        z = received.to(anchors.device)  # keeps its type, which autocast must not narrow
        extra = weight * received_loss(anchors, positives, z, margin, self.config.reduction)
        loss = triplet + extra
        return self.logged({"loss": loss, "triplet": triplet, "regulariser": extra})

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Advance to the next time step."""
        self._done += 1

    @property
    def weight(self) -> float:
        """W_t of the current step; 0 if no embeddings were received."""
        local, config = self._local, self.config
        if local.received is None or len(local.received) == 0:
            return 0.0
        return staleness_weight(
            local.step + self._done,
            total=config.total_steps,
            interval=config.aggregate_every,
            scale=config.regulariser,
            rho_zeta=config.rho_zeta,
        )
