"""Autoencoder: a decoder turns representations into samples again, by federated averaging.

Hinton and Salakhutdinov, "Reducing the Dimensionality of Data with Neural Networks" (2006). With
k-means on its representations it is the baseline AE of deep clustering, as in Miao and Koyuncu,
"Federated Momentum Contrastive Clustering" (FedMCC), table VI. VAE and DEC build on it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from coterie.contract import Entry, Role, ServerState, StateRoles, Task
from coterie.contract.client import Batch
from coterie.contract.clusterer import Clusterer, parameter_dtype, to_unit
from coterie.gradcache import UNCOUPLED, Terms
from coterie.modules.averaging import Averaging, AveragingConfig
from coterie.modules.client_module import ClientModule
from coterie.networks.gan import build_generator
from coterie.precision import widened


class AutoencoderConfig(AveragingConfig):
    """Options of the autoencoder and the VAE; the decoder has the layers of SDA-FC's generator."""

    absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": UNCOUPLED}

    latent: PositiveInt | None = None
    """Width of a linear layer behind the encoder, whose outputs are the representation; by
    default the encoder's own outputs are."""
    hidden: PositiveInt = 1024
    """Width of the decoder's linear layers."""
    width: PositiveInt = 64
    """Channels of the decoder's last hidden layer, for images; the one before has twice as
    many."""
    learning_rate: PositiveFloat = 1e-3
    """Adam's learning rate."""
    rounds: PositiveInt = 10
    epochs: PositiveInt = 10
    batch_size: Annotated[int, Field(ge=2)] = 256


def narrowed(task: Task, latent: int | None) -> tuple[nn.Module, int]:
    """Build the task's encoder, followed by a linear layer.

    Args:
        task: The task.
        latent: Outputs of that layer; None leaves it out.

    Returns:
        The network, from samples (n, …) to (n, width), and its width.
    """
    backbone = task.encoder.build(task.shape)
    if latent is None:
        return backbone, task.features
    layer = nn.Linear(task.features, latent)
    return nn.Sequential(OrderedDict(backbone=backbone, latent=layer)), latent


class Reconstruction(ClientModule):
    """Encoder, decoder, and the error of a rebuilt sample."""

    representation = "encoder"
    config: AutoencoderConfig

    def __init__(self, config: AutoencoderConfig, task: Task) -> None:
        super().__init__(config, task)
        self.encoder, width = narrowed(task, config.latent)
        self.decoder = build_generator(task.shape, width, config.hidden, config.width)
        self.to(task.dtype)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Build Adam over all parameters that take a gradient."""
        learned = [p for p in self.parameters() if p.requires_grad]
        return torch.optim.Adam(learned, lr=self.config.learning_rate)

    def training_step(self, batch: Batch, batch_idx: int) -> Terms:
        """Return the mean squared error of a batch's values, of images in [0, 1]."""
        samples = to_unit(batch["samples"], parameter_dtype(self))
        rebuilt = self.decoder(self.encoder(samples))
        return self.logged({"loss": (widened(rebuilt) - widened(samples)).square().mean()})


class Autoencoder(Averaging[AutoencoderConfig, Reconstruction]):
    """An autoencoder that rebuilds samples; all its weights are averaged, and clients keep none."""

    stage = "representation"
    network = Reconstruction
    roles = StateRoles(
        Entry(pattern="encoder.*", role=Role.AVERAGE, slot="encoder"),
        Entry(pattern="decoder.*", role=Role.AVERAGE, slot="decoder"),
    )

    class Config(AutoencoderConfig):
        """The autoencoder's configuration."""

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder."""
        return Clusterer(self.global_module(server).encoder)
