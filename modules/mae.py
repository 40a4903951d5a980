"""MAE: a vision transformer sees a quarter of an image's patches, and predicts the others.

He et al., "Masked Autoencoders Are Scalable Vision Learners" (arXiv:2111.06377), with lightly's
masked transformer and decoder, by federated averaging of encoder and decoder.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.contract import Entry, Role, ServerState, StateRoles, Task, derive_seed
from coterie.contract.client import batch_seed
from coterie.contract.clusterer import Clusterer, parameter_dtype
from coterie.gradcache import UNCOUPLED, Terms
from coterie.modules.averaging import Averaging, AveragingConfig, sgd_or_adam
from coterie.modules.client_module import ClientModule
from coterie.modules.mae_model import MaskedNetwork
from coterie.networks.views import LazyViews


class MaskedAutoencoder(ClientModule):
    """The networks, and the loss on the patches that the encoder does not see."""

    config: "MAE.Config"

    def __init__(self, config: "MAE.Config", task: Task) -> None:
        super().__init__(config, task)
        sizes = (config.decoder, config.decoder_heads, config.decoder_blocks)
        self.online = MaskedNetwork(task, *sizes)
        self.augment = task.augmentation.build(task.shape)
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build the optimiser of all parameters that take a gradient."""
        return sgd_or_adam(self, self.config.learning_rate, 0.9)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Draw a view of each image, and an order of its patches, of which the last are masked."""
        samples, seed = batch["samples"], batch_seed(batch)
        view = LazyViews(self.augment, samples, derive_seed(seed, "view"), parameter_dtype(self))
        draw = torch.Generator().manual_seed(derive_seed(seed, "mask"))
        order = torch.rand(len(samples), self.online.patches, generator=draw).argsort(dim=1)
        return view[:], order.to(samples.device)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Terms:
        """Return the mean squared error of the masked patches (section 3)."""
        seen = max(1, round(self.online.patches * (1 - self.config.masked)))
        found, wanted = self.online(*batch, seen)
        if self.config.standardise:
            variance, mean = torch.var_mean(wanted, dim=-1, keepdim=True)
            wanted = (wanted - mean) / (variance + 1e-6).sqrt()
        return self.logged({"loss": (found - wanted).square().mean()})


class MAE(Averaging["MAE.Config", MaskedAutoencoder]):
    """Predicts the patches that a vision transformer does not see. Clients keep nothing."""

    stage = "representation"
    network = MaskedAutoencoder
    roles = StateRoles(
        Entry(pattern="online.encoder.*", role=Role.AVERAGE, slot="encoder"),
        Entry(pattern="online.*", role=Role.AVERAGE, slot="decoder"),
        Entry(pattern="augment.*", role=Role.RESET),
    )

    class Config(AveragingConfig):
        """MAE's configuration."""

        absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": UNCOUPLED}

        masked: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.75
        """Share of an image's patches that the encoder does not see."""
        standardise: bool = True
        """Whether each patch to be predicted is scaled to mean 0 and deviation 1."""
        decoder: PositiveInt = 512
        """Width of the decoder, a multiple of 4 and of `decoder_heads`."""
        decoder_heads: PositiveInt = 16
        """Attention heads of the decoder."""
        decoder_blocks: PositiveInt = 8
        """Transformer blocks of the decoder."""
        optimizer: Literal["adam", "sgd", "adamw"] = "adamw"
        """AdamW, Adam, or SGD with momentum 0.9."""
        learning_rate: PositiveFloat = 1.5e-4
        """The optimiser's learning rate."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 0.05
        """The optimiser's weight decay."""
        rounds: PositiveInt = 100
        epochs: PositiveInt = 2
        batch_size: Annotated[int, Field(ge=2)] = 64

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder."""
        return Clusterer(self.global_module(server).online.encoder)
