"""PPFC-GAN: a deep clustering network on synthetic samples from each client's GAN.

Yan et al., "Privacy-Preserving Federated Deep Clustering based on GAN" (2022), with the network of
Yang et al., "Towards K-means-friendly Spaces" (DCN, 2017). Baseline of CCFC (tables 1 and 2).
"""

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt
from torch import nn

from coterie.clustering.deep import deep_clustering
from coterie.contract import (
    Phase,
    ServerState,
    Tensors,
    WeightedUpdate,
    concatenated,
    derive_seed,
    load_slots,
    seeded,
)
from coterie.contract.clusterer import to_unit
from coterie.modules.fixed_encoder import ENCODER, ROLES, FixedEncoder
from coterie.modules.sent_centroids import CENTROIDS
from coterie.modules.synthesis import SYNTHETIC, OnSynthesis, SynthesisConfig
from coterie.networks.encoders import Width, dense


class PPFCGAN(OnSynthesis):
    """Deep clusters of synthetic samples: each client trains a GAN and sends samples of it, once.

    The encoder is trained at the server.
    """

    class Config(SynthesisConfig):
        """PPFC-GAN's configuration: widths are DCN's for MNIST, training options are ours."""

        pretrain_epochs: PositiveInt = 50
        """Epochs of reconstruction at the server, before there are clusters."""
        epochs: PositiveInt = 50
        """Epochs at the server in which latents are pulled to the centroids."""
        pull: Annotated[float, Field(ge=0.0)] = 0.05
        """λ, the weight of the squared distance of a latent to its centroid."""
        learning_rate: PositiveFloat = 1e-3
        """Adam's learning rate at the server."""
        batch_size: Annotated[int, Field(ge=2)] = 256
        """Samples per batch at the server."""
        decoder: Annotated[tuple[Width, ...], Field(strict=False, max_length=100)] = (
            2000,
            500,
            500,
        )
        """Widths of the decoder's hidden layers."""

    _config: "PPFCGAN.Config"

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Train the deep clustering network on all synthetic samples."""
        samples = to_unit(concatenated(gathered, SYNTHETIC), self._task.dtype)
        config, seed = self._config, derive_seed(server.whole("seed"), "network")
        with seeded(seed):
            module, decoder = FixedEncoder(self._task).requires_grad_(True), self._built_decoder()
            load_slots(module, {ENCODER: server.slots[ENCODER]})
            centroids = deep_clustering(
                module.encoder,
                decoder,
                samples,
                clusters=self._clusters,
                pretrain_epochs=config.pretrain_epochs,
                epochs=config.epochs,
                pull=config.pull,
                learning_rate=config.learning_rate,
                batch_size=config.batch_size,
                restarts=config.restarts,
                seed=seed,
            )
        slots = {ENCODER: ROLES.slot(module, ENCODER), CENTROIDS: {CENTROIDS: centroids}}
        return server.advance(phase, slots)

    def _built_decoder(self) -> nn.Module:
        """Return a decoder from latents to flattened samples; images are in [0, 1]."""
        layers = dense(self._task.features, list(self._config.decoder), math.prod(self._task.shape))
        ends = [nn.Sigmoid()] if len(self._task.shape) == 3 else []
        return nn.Sequential(*layers, *ends).to(self._task.dtype)
