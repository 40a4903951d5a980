"""What a method is: a client half, a server half, and the phases that join them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import nn

from coterie.config.component import Component
from coterie.contract.client import Client
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import Mean, Outcome, Phase, ServerState, Slots, Tensors


class BuildsEncoder(Protocol):
    """A component that builds an encoder, whose `features` is its output width."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """An encoder for samples of this shape."""


class BuildsAugmentation(Protocol):
    """A component that builds a random augmentation of float samples in [0, 1]."""

    def build(self, shape: tuple[int, ...]) -> nn.Module:
        """An augmentation for samples of this shape."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a method is to learn, and from what.

    Attributes:
        shape: A sample's shape: (channels, height, width) or (features,).
        classes: How many classes the data has; 0 if there are no labels.
        encoder: The representation network's config.
        augmentation: The random views' config.
        dtype: The parameters' type, from the run's precision.
    """

    shape: tuple[int, ...]
    classes: int
    encoder: BuildsEncoder
    augmentation: BuildsAugmentation
    dtype: torch.dtype = torch.float32


class Method(Protocol):
    """A federated method. The engine knows none by name.

    A class of `modules/` has a nested `Config` (a frozen `Component`) and is made of it and a
    `Task`. Apart from `init` and `client`, which derive all randomness from the seed they are
    given, its functions are pure.

    Attributes:
        needs_labels: Whether clients train with labels.
        rounds: How many rounds there will be.
    """

    needs_labels: bool
    rounds: int

    def __init__(self, config: Component, task: Task) -> None: ...

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """The state before the first phase; `sizes` is each client's number of samples."""

    def next(self, server: ServerState) -> Phase | None:
        """The phase that follows this state; None at the end."""

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The slots of `phase.down`, as the clients are to see them."""

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """One client's turn. The slots are read-only views."""

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """The server's state after the phase.

        Args:
            server: Its state before.
            phase: What was done.
            means: Slot to weighted mean over the clients that contributed to it.
            records: Client to its records, in client order.
        """

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The model to evaluate and take away: the server's, or the one a client would use."""


@runtime_checkable
class GroupsClients(Protocol):
    """A method that puts clients into groups: what it finds is tracked, drawn and compared."""

    def client_groups(self, server: ServerState) -> Mapping[int, Sequence[int]]:
        """Round to the group of each client in it, from 0; −1 for those that were absent. Pure."""
        ...

    def members(self, server: ServerState) -> Mapping[int, int]:
        """Client to the group that it is in now; of some there may be none yet. Pure."""
