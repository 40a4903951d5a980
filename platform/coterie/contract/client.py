"""What a method's client half receives: data, state, peer messages, a seed, and a trainer."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from lightning import LightningModule
from numpy.typing import NDArray
from torch import Tensor, nn

from coterie.contract.data import Indices, Samples
from coterie.contract.own_module import Trained, Training
from coterie.contract.phase import Tensors
from coterie.contract.samples import StreamedSamples
from coterie.errors import ContractError

Batch = dict[str, Any]
"""{"samples": (batch, …) uint8 or float32, "positions": int64 (batch,), "labels": int64 (batch,),
"seed": int}. Positions index the client's own data. A task's batches have labels only for
supervised methods; those of a data module's loader have all labels, and no seed."""


def batch_seed(batch: Batch) -> int:
    """Return the seed of a batch's views; without one, draw it from PyTorch's global generator."""
    return batch["seed"] if "seed" in batch else int(torch.randint(2**63 - 1, ()))


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """A client's own rows of the data set, as a view and not a copy.

    Samples that were received from other clients may follow its own samples.

    Attributes:
        samples: The whole data set's samples, shared and read-only.
        rows: The client's rows in it.
        labels: The whole data set's classes, only if the method is supervised.
        received: Samples from other clients, positioned behind the client's own; or None.
    """

    samples: Samples
    rows: Indices
    labels: Int64[np.ndarray, "_"] | None = None
    received: Shaped[np.ndarray, "m ..."] | None = None

    def __len__(self) -> int:
        """Return the number of samples, including received ones."""
        return len(self.rows) + (0 if self.received is None else len(self.received))

    @property
    def streamed(self) -> bool:
        """Whether samples are read from files when they are taken."""
        return isinstance(self.samples, StreamedSamples)

    def read_only(self) -> "ClientData":
        """Return the same data, as views that cannot be written into."""
        samples = self.samples if self.streamed else _view(self.samples)
        labels = None if self.labels is None else _view(self.labels)
        return replace(self, samples=samples, rows=_view(self.rows), labels=labels)

    @classmethod
    def of_batch(cls, batch: Batch) -> "ClientData":
        """Return a batch's samples without received ones, in their order, on the CPU."""
        samples = batch["samples"].numpy()
        return cls(samples=samples, rows=np.arange(len(samples)))

    def joined(self, samples: Shaped[Tensor, "m ..."]) -> "ClientData":
        """Return the same data with these received samples in place of earlier ones."""
        return replace(self, received=samples.numpy() if len(samples) else None)

    def take(self, positions: Indices | None = None) -> Shaped[Tensor, "n ..."]:
        """Copy the samples at these positions of the client's data; all by default."""
        if self.received is None:
            rows = self.rows if positions is None else self.rows[positions]
            return torch.from_numpy(self.samples[rows])
        places = np.arange(len(self)) if positions is None else positions
        foreign = places >= len(self.rows)
        taken = np.empty((len(places), *self.samples.shape[1:]), self.samples.dtype)
        taken[~foreign] = self.samples[self.rows[places[~foreign]]]
        taken[foreign] = self.received[places[foreign] - len(self.rows)]
        return torch.from_numpy(taken)

    def take_labels(self, positions: Indices | None = None) -> Int64[Tensor, "n"]:
        """Return the classes at these positions.

        Raises:
            ContractError: If the method does not declare that it needs labels.
        """
        if self.labels is None:
            raise ContractError("Labels are hidden from unsupervised methods; set needs_labels.")
        rows = self.rows if positions is None else self.rows[positions]
        return torch.from_numpy(self.labels[rows])


def _view(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Length and batches of local training.

    Batches depend on the seed and the step only, so training can continue at any step.

    Attributes:
        batch_size: Samples per batch; an epoch's last batch is smaller, and skipped below two.
        epochs: Passes over the client's data, unless `steps` is given.
        steps: Batches to train on, instead of epochs.
        first_step: The first step, counted over all epochs.
        seed: Seed of the batches, for training that continues over tasks; by default the task's
            own seed.
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
            raise ContractError(f"{self}: epochs and steps cannot be negative; give 0 or more.")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Report of local training.

    Attributes:
        steps: Optimiser steps taken.
        metrics: Mean over the steps of each scalar that `training_step` returned.
    """

    steps: int
    metrics: Mapping[str, float]


class LocalTrainer(Protocol):
    """Interface for training a LightningModule on a client's data, with or without a Trainer."""

    def fit(self, module: LightningModule, batches: "Batches", seed: int) -> Fit:
        """Train in place; `seed` sets the global generators during training."""


class Batches(Protocol):
    """Batches of a training; each iteration over it is the next epoch."""

    @property
    def epochs(self) -> int:
        """Number of epochs."""

    @property
    def steps(self) -> int:
        """Number of batches of all epochs."""

    def __iter__(self) -> Iterator[Batch]:
        """Return the batches of the next epoch."""

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""


ModuleT = TypeVar("ModuleT", bound=LightningModule)


class Client(Protocol):
    """One client in one task."""

    @property
    def id(self) -> int:
        """The client's number, from 0."""

    @property
    def data(self) -> ClientData:
        """Its own samples."""

    @property
    def state(self) -> Tensors | None:
        """The state that it saved in its last task, or None."""

    @property
    def peer_messages(self) -> Mapping[int, Tensors]:
        """Sender to its message since the last task."""

    @property
    def seed(self) -> int:
        """Its seed for this task, derived from run, round, phase and client."""

    def module(self, key: str, build: Callable[[], ModuleT]) -> ModuleT:
        """Return the module of this `key` in its initial state; a process builds it only once."""

    def fit(self, module: LightningModule, plan: Plan, data: ClientData | None = None) -> Fit:
        """Train the module in place, by default on the client's own data."""

    def train(self, module: Any, training: Training) -> Trained:
        """Train a user's module in place by a plain Trainer and the user's own loaders."""

    def score(self, module: Any, training: Training) -> dict[str, float]:
        """Return what a user's module logs in its validation steps, by name."""

    def noisy(self, sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        """Add noise to integers, where the phase has an ε.

        The noise is a discrete Gaussian, from a secret of the run and of this task; it depends on
        the purpose and on the integers, so a task that runs again has the same.

        Args:
            sums: Integers, int64 (n,).
            sigma: The noise's standard deviation.
            purpose: What the integers are; unlike for any others of the task.

        Raises:
            ContractError: If the phase has no ε.
        """

    def embed(
        self, network: nn.Module, samples: Shaped[Tensor, "n ..."] | None = None
    ) -> Shaped[Tensor, "n ..."]:
        """Return the network's outputs in eval mode, by default for the client's own samples.

        Args:
            network: Takes samples in [0, 1].
            samples: uint8 or floating samples.

        Returns:
            Outputs, in the samples' order, on the CPU.
        """
