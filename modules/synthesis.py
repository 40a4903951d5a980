"""The base of SDA-FC and PPFC-GAN: each client trains a small GAN and sends its samples.

Yan et al., "Federated Clustering with GAN-based Data Synthesis" (SDA-FC, 2022) and
"Privacy-Preserving Federated Deep Clustering based on GAN" (PPFC-GAN, 2022). One round: the server
clusters the clients' synthetic samples. The paper trains both networks in turns, with an optimiser
each; here they step at the same time, with one Adam of two learning rates, so that any executor
trains them.
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import one_hot

from coterie.config.method import MethodConfig
from coterie.contract import (
    Client,
    Outcome,
    Phase,
    Plan,
    ServerState,
    Slots,
    Task,
    TensorSpec,
    derive_seed,
)
from coterie.contract.client import Batch
from coterie.contract.clusterer import to_unit
from coterie.errors import ConfigError
from coterie.gradcache import Terms
from coterie.losses.adversarial import discriminator_loss, generator_loss
from coterie.modules.client_module import ClientModule
from coterie.modules.fixed_encoder import OnCentroids
from coterie.networks.branch import cluster_count
from coterie.networks.gan import build_discriminator, build_generator

SYNTHETIC = "synthetic"
_INITIAL = 0.02
"""Standard deviation of initial weights; biases are zero (SDA-FC's code)."""


class SynthesisConfig(MethodConfig):
    """Options of SDA-FC and PPFC-GAN; the GAN's sizes are those of SDA-FC's code for MNIST."""

    absent: ClassVar[Mapping[str, str]] = {
        "micro_batch_size": "a GAN's batch norm needs the whole batch"
    }

    clusters: PositiveInt | None = None
    """Number of clusters k; by default the data's number of classes."""
    samples: PositiveInt = 7000
    """Maximum number of synthetic samples that a client sends, which is also at most its number of
    samples."""
    gan_epochs: PositiveInt = 50
    """Epochs in which a client trains its GAN."""
    gan_batch_size: Annotated[int, Field(ge=2)] = 64
    """Samples per batch of the GAN."""
    generator_rate: PositiveFloat = 1e-3
    """Adam's learning rate for the generator (ours)."""
    discriminator_rate: PositiveFloat = 1e-3
    """Adam's learning rate for the discriminator (ours)."""
    noise: PositiveInt = 62
    """Number of normal variables in a code, which also has one of k equally frequent categories."""
    gan_hidden: PositiveInt = 1024
    """Width of the GAN's linear layers."""
    gan_width: PositiveInt = 64
    """Channels of the discriminator's first convolution and of the generator's last hidden one."""
    restarts: PositiveInt = 10
    """Starts of k-means at the server."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients."""


class GAN(ClientModule):
    """A generator and a discriminator, trained at the same time.

    Vectors are standardised by the client's own mean and deviation, which never leave it.

    Args:
        config: Widths and learning rates.
        task: The samples' shape.
        clusters: Categories of a code.
    """

    config: SynthesisConfig
    shift: Tensor
    scale: Tensor

    def __init__(self, config: SynthesisConfig, task: Task, clusters: int) -> None:
        super().__init__(config, task, clusters=clusters)
        self.clusters = clusters
        codes, hidden, width = config.noise + clusters, config.gan_hidden, config.gan_width
        self.generator = build_generator(task.shape, codes, hidden, width)
        self.discriminator = build_discriminator(task.shape, hidden, width)
        for part in self.modules():
            if isinstance(part, nn.Conv2d | nn.ConvTranspose2d | nn.Linear):
                nn.init.normal_(part.weight, std=_INITIAL)
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
        self.register_buffer("shift", torch.zeros(task.shape))
        self.register_buffer("scale", torch.ones(task.shape))
        self.to(task.dtype)

    def codes(self, count: int, draw: torch.Generator | None = None) -> Tensor:
        """Draw random codes (count, noise + k), with equally many of each category (±1)."""
        normal = torch.randn(count, self.config.noise, generator=draw)
        categories = torch.arange(count) * self.clusters // count
        both = torch.cat([normal, one_hot(categories, self.clusters)], dim=1)
        return both.to(self.shift)

    def forward(self, codes: Tensor) -> Tensor:
        """Return synthetic samples (n, …) of codes (n, noise + k)."""
        made: Tensor = self.generator(codes) * self.scale + self.shift
        return made

    def training_step(self, batch: Batch, batch_idx: int) -> Terms:
        """Return both losses; the generator's gradient does not reach the discriminator."""
        real = (to_unit(batch["samples"], self.shift.dtype) - self.shift) / self.scale
        made = self.generator(self.codes(len(real)))
        told = discriminator_loss(self.discriminator(real), self.discriminator(made.detach()))
        fixed = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        missed = generator_loss(functional_call(self.discriminator, fixed, (made,)))
        loss = told + missed
        return self.logged(
            {"loss": loss, "discriminator": told.detach(), "generator": missed.detach()}
        )

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return one Adam with two learning rates."""
        groups = [
            {"params": self.generator.parameters(), "lr": self.config.generator_rate},
            {"params": self.discriminator.parameters(), "lr": self.config.discriminator_rate},
        ]
        return torch.optim.Adam(groups, betas=(0.5, 0.999))


METRICS = frozenset({"loss", "discriminator", "generator"})


class OnSynthesis(OnCentroids):
    """A method whose clients each send synthetic samples, once."""

    rounds = 1

    def __init__(self, config: SynthesisConfig, task: Task) -> None:
        super().__init__(task)
        self._config = config
        self._clusters = cluster_count(config.clusters, task)
        self._images = len(task.shape) == 3
        if task.k_anonymity > 1:
            raise ConfigError(
                f"privacy.k_anonymity={task.k_anonymity}: a synthetic sample may be a copy of a "
                "client's own; set privacy.k_anonymity=1 or choose a method that sends means."
            )

    def next(self, server: ServerState) -> Phase | None:
        """Return the only phase."""
        if server.round:
            return None
        shape: tuple[range | int, ...] = (range(1, self._config.samples + 1), *self._task.shape)
        spec = (
            TensorSpec(shape=shape, dtype=torch.uint8) if self._images else TensorSpec(shape=shape)
        )
        return Phase(
            name=SYNTHETIC,
            stage="clustering",
            round=1,
            cohort=self._config.participation,
            gathered=frozenset({SYNTHETIC}),
            metrics=METRICS,
            specs={SYNTHETIC: spec},
        )

    def build(self) -> GAN:
        """Return the networks and their loss."""
        return GAN(self._config, self._task, self._clusters)

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train a GAN on the client's own samples, and draw samples; images have 8 bits a pixel."""
        config = self._config
        module = client.module("gan", self.build)
        if not self._images:
            own = to_unit(client.data.take(), module.shift.dtype)
            module.shift.copy_(own.mean(dim=0))
            module.scale.copy_(own.std(dim=0, correction=0).clamp_min(1e-6))
        plan = Plan(batch_size=config.gan_batch_size, epochs=config.gan_epochs)
        fit = client.fit(module, plan)
        draw = torch.Generator().manual_seed(derive_seed(client.seed, SYNTHETIC))
        codes = module.codes(min(config.samples, len(client.data)), draw)
        made = client.embed(module.generator, codes) * module.scale + module.shift
        made = (255 * made).round().to(torch.uint8) if self._images else made.float()
        metrics = {name: fit.metrics[name] for name in METRICS}
        return Outcome(gathered={SYNTHETIC: made}, metrics=metrics)
