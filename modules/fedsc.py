"""FedSC: spectral contrastive learning against the correlation matrices of the other clients.

Jing et al., "FedSC: Provable Federated Self-supervised Learning with Spectral Contrastive Objective
over Non-i.i.d. Data" (ICML 2024). A client's samples repel its own and, through the mean of the
other clients' correlation matrices, theirs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from coterie.contract import (
    Client,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
)
from coterie.contract.accounting import epsilon
from coterie.errors import ConfigError
from coterie.losses.correlation import correlation, shared_spectral_loss
from coterie.losses.spectral import bounded_rows
from coterie.modules.pretraining import CrossSilo, PretrainingConfig
from coterie.modules.shared_statistics import (
    DRAW,
    SAMPLES,
    SEED,
    STATISTICS,
    SharedStatistics,
    SharedViews,
)

MATRIX, FEWEST = "matrix", "fewest"
_STEPS = 2**24
"""Lattice steps per standard deviation of the noise."""


class SharedSpectral(SharedViews):
    """The network, and the spectral loss with the other clients' correlations."""

    config: "FedSC.Config"

    def __init__(self, config: "FedSC.Config", task: Task) -> None:
        super().__init__(config, task, {MATRIX: (config.projection, config.projection)})
        self.share = 1.0

    def measure(self, u: Tensor, v: Tensor) -> Tensors:
        """Return the correlation matrix of both views."""
        bound = self.config.bound
        return {MATRIX: correlation(bounded_rows(u, bound), bounded_rows(v, bound))}

    def loss(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the local objective with this task's α."""
        u, v = (bounded_rows(z, self.config.bound) for z in (u, v))
        return shared_spectral_loss(u, v, self.shared()[MATRIX], self.share)


class FedSC(SharedStatistics["FedSC.Config", SharedSpectral]):
    """Spectral contrast against the other clients' correlation matrices, which are shared first.

    A client keeps the matrix that it sent until it has trained.
    """

    network = SharedSpectral

    class Config(CrossSilo, PretrainingConfig):
        """FedSC's configuration; the defaults are its code's for CIFAR-10."""

        sums: ClassVar[bool] = True

        bound: PositiveFloat = 4.0
        """μ: projections longer than √μ are shortened to it."""
        least_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
        """The last value of α, which falls from 1, where a client is alone with its samples."""
        share_rounds: PositiveInt = 200
        """Rounds in which α falls, by equal steps."""
        noise: Annotated[float, Field(ge=0.0)] = 0.0
        """Standard deviation of the Gaussian noise on each entry of a matrix that a client sends.
        It needs a network without BatchNorm, through which one sample would move all
        projections."""
        delta: Annotated[float, Field(gt=0.0, lt=1.0)] = 1e-5
        """With noise, δ for which ε is reported; choose it well below one divided by a client's
        samples."""
        weight_decay: Annotated[float, Field(ge=0.0)] = 5e-4
        hidden: PositiveInt = 1024
        rounds: PositiveInt = 200
        epochs: PositiveInt = 5
        batch_size: Annotated[int, Field(ge=2)] = 512
        """Samples per batch, n."""

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a fresh model, no matrices, and the size of the smallest client.

        Raises:
            ConfigError: If there is to be noise, and one sample can move all projections.
        """
        mixing = [part for part in self.build().online.modules() if isinstance(part, _BatchNorm)]
        if self._config.noise and mixing:
            raise ConfigError(
                f"method.noise={self._config.noise:g}: through {type(mixing[0]).__name__} one "
                "sample moves all projections of its batch, and no noise hides it; choose "
                "encoder.norm=group and method.projector_norm=none."
            )
        start = super().init(sizes, seed)
        return replace(start, metadata={**start.metadata, FEWEST: min(sizes.values())})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase, with the ε that clients' noise has spent up to it."""
        phase = super().next(server)
        if phase is None or not self._config.noise:
            return phase
        return replace(phase, epsilon=self._spent(phase.round, server.whole(FEWEST)))

    def _spent(self, matrices: int, samples: int) -> float:
        """Return the ε of the matrices that a client with this number of samples has sent.

        A sample adds ½ (u uᵀ + v vᵀ) to its client's sum, of norm μ at most, so without it the mean
        changes by μ / n; and by rounding to the lattice by half a step for each entry.
        """
        config = self._config
        rounding = config.projection * config.noise / _STEPS
        change = config.bound * (1 + 1e-6) / samples + rounding
        return epsilon(matrices, config.noise / change, config.delta)

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """Return the networks, and the number of samples behind the mean matrix."""
        slots = super().offer(server, phase)
        if STATISTICS not in phase.down:
            return slots
        samples = server.whole(SAMPLES) if self.is_fresh(server, phase) else 0
        return {**slots, DRAW: {**slots[DRAW], SAMPLES: torch.tensor([samples])}}

    def receive(self, module: SharedSpectral, phase: Phase, kept: Tensors, slots: Slots) -> None:
        """Subtract the client's own matrix from the mean before training, and set α."""
        if module.measures:
            return
        if kept and not torch.equal(kept[SEED], slots[DRAW][SEED]):
            kept = {}  # the matrix of another round, in which the client did not come to train
        everyone = int(slots[DRAW][SAMPLES])
        others = everyone - int(kept.get(SAMPLES, 0))
        module.share = 1.0
        if others <= 0:  # nobody else has sent a matrix
            return
        module.share -= (1.0 - self._config.least_share) * min(
            1.0, (phase.round - 1) / self._config.share_rounds
        )
        if kept:
            mean = module.shared()[MATRIX]
            mean.copy_((everyone * mean - (everyone - others) * kept[MATRIX]) / others)

    def finish(self, module: SharedSpectral, client: Client) -> None:
        """Add noise to the matrix, by a key from the operating system."""
        if self._config.noise:
            matrix, step = module.shared()[MATRIX], self._config.noise / _STEPS
            whole = (matrix.detach().cpu().double() / step).round().to(torch.int64)
            noisy = client.noisy(whole.flatten().numpy(), _STEPS, MATRIX)
            matrix.copy_(torch.from_numpy(noisy).reshape(whole.shape).double() * step)

    def keep(self, module: SharedSpectral, slots: Slots) -> Tensors | None:
        """Return the matrix as it is sent, with its number of samples."""
        if not module.measures:
            return None
        matrix = module.shared()[MATRIX].detach().cpu().clone()
        return {MATRIX: matrix, SAMPLES: torch.tensor([module.measured]), SEED: slots[DRAW][SEED]}
