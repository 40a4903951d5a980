"""What a method's client half is given: data, state, mail, a seed, and a trainer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.contract.data import Indices, Samples
from coterie.contract.phase import Tensors
from coterie.contract.samples import StreamedSamples
from coterie.errors import ContractError

Batch = dict[str, Any]
"""{"samples": (batch, …) uint8 or float32, "positions": int64 (batch,), "seed": int} and, for
supervised methods, "labels". Positions are those of the samples in the client's own data."""


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """A client's own rows of the data set, viewed and never copied as a whole.

    Behind its own samples may come some that it received from others.

    Attributes:
        samples: The whole data set's samples (n, …), shared and read-only.
        rows: int64 (size,), the client's rows of it.
        labels: The whole data set's classes (n,), only if the method is supervised.
        received: Samples from others (m, …), whose positions follow those of its own; or None.
    """

    samples: Samples
    rows: Indices
    labels: NDArray[np.int64] | None = None
    received: NDArray[np.generic] | None = None

    def __len__(self) -> int:
        """How many samples the client has, those from others included."""
        return len(self.rows) + (0 if self.received is None else len(self.received))

    @property
    def streamed(self) -> bool:
        """Whether its samples are read from files when they are taken."""
        return isinstance(self.samples, StreamedSamples)

    def joined(self, samples: Tensor) -> "ClientData":
        """The same data with these samples (m, …) from others behind it, in place of any before."""
        return replace(self, received=samples.numpy() if len(samples) else None)

    def take(self, positions: Indices | None = None) -> Tensor:
        """A copy of the samples at these positions of the client's data; all by default."""
        if self.received is None:
            rows = self.rows if positions is None else self.rows[positions]
            return torch.from_numpy(self.samples[rows])
        places = np.arange(len(self)) if positions is None else positions
        foreign = places >= len(self.rows)
        taken = np.empty((len(places), *self.samples.shape[1:]), self.samples.dtype)
        taken[~foreign] = self.samples[self.rows[places[~foreign]]]
        taken[foreign] = self.received[places[foreign] - len(self.rows)]
        return torch.from_numpy(taken)

    def take_labels(self, positions: Indices | None = None) -> Tensor:
        """The classes at these positions, int64.

        Raises:
            ContractError: If the method does not declare that it needs labels.
        """
        if self.labels is None:
            raise ContractError(
                "Labels are out of an unsupervised method's reach; set needs_labels."
            )
        rows = self.rows if positions is None else self.rows[positions]
        return torch.from_numpy(self.labels[rows])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long and on which batches to train locally.

    Batches are a function of the seed and the step alone, so training can go on at any step.

    Attributes:
        batch_size: Samples a batch; the last one of an epoch is smaller, and skipped below two.
        epochs: Passes over the client's data; or
        steps: Batches to train on, in place of epochs.
        first_step: The step to begin at, counted over all epochs.
        seed: What the batches follow from, for training that goes on from turn to turn; by default
            the turn's own seed.
    """

    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    first_step: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if (self.epochs is None) == (self.steps is None):
            raise ContractError(f"{self}: give either epochs or steps.")
        if self.batch_size < 2:
            raise ContractError(
                f"batch_size={self.batch_size}: batch norm and contrastive losses need 2 or more."
            )
        if min(self.first_step, self.epochs or 0, self.steps or 0) < 0:
            raise ContractError(f"{self}: count epochs and steps from 0 on.")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What local training reports.

    Attributes:
        steps: Optimiser steps taken.
        metrics: Means over the steps of every scalar that `training_step` returned.
    """

    steps: int
    metrics: Mapping[str, float]


class LocalTrainer(Protocol):
    """Trains a LightningModule on a client's data: Lightning's Trainer or the plain loop."""

    def fit(self, module: LightningModule, batches: "Batches", seed: int) -> Fit:
        """Train in place; `seed` sets the global generators for the time of the training."""


class Batches(Protocol):
    """An epoch's batches each time it is iterated over, epoch after epoch."""

    @property
    def epochs(self) -> int:
        """How often to iterate."""

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch."""

    def __len__(self) -> int:
        """Batches in an epoch."""


ModuleT = TypeVar("ModuleT", bound=LightningModule)


class Client(Protocol):
    """One client in one turn.

    Attributes:
        id: Its number, from 0.
        data: Its own samples.
        state: What it kept from its last turn, or None.
        mail: Sender to what it sent since the last turn.
        seed: Its seed for this turn, derived from run, round, phase and client.
    """

    @property
    def id(self) -> int:
        """Its number."""

    @property
    def data(self) -> ClientData:
        """Its samples."""

    @property
    def state(self) -> Tensors | None:
        """What it kept."""

    @property
    def mail(self) -> Mapping[int, Tensors]:
        """Sender to message."""

    @property
    def seed(self) -> int:
        """Its seed for this turn."""

    def module(self, kind: str, build: Callable[[], ModuleT]) -> ModuleT:
        """The model in its initial state; a process builds each `kind` once and reuses it."""

    def fit(self, module: LightningModule, plan: Plan, data: ClientData | None = None) -> Fit:
        """Train the module in place, by default on the client's own data."""

    def embed(self, network: nn.Module, samples: Tensor | None = None) -> Tensor:
        """What the network, in eval mode, gives for each sample, by default of the client's own.

        Args:
            network: Takes samples in [0, 1].
            samples: uint8 or floating samples (n, …).

        Returns:
            Outputs (n, …), in the samples' order, on the CPU.
        """
