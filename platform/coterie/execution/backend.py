"""The protocol of backends, which run a phase on a Ray cluster's actors or in this process."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from lightning import Callback
from numpy.typing import NDArray

from coterie.config.schema import RunConfig
from coterie.contract.clusterer import Prediction
from coterie.contract.data import Indices, Samples
from coterie.contract.method import Task
from coterie.contract.phase import ServerState
from coterie.execution.events import Event, Handle, PhaseRequest
from coterie.execution.node_local_data import Tally
from coterie.execution.packing import Packed
from coterie.execution.predictor import Chunk


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Everything that a process needs to run clients.

    Attributes:
        samples: "train" and, where there are any, "test" samples; empty where data is node-local.
        parts: Client to its rows of the training samples.
        labels: The training samples' classes; None unless the method is supervised.
        node_local_classes: The class names of all clients where data is node-local, else None. Each
            process then reads the data of the clients that it hosts.
        callbacks: Callbacks of the Trainer on each client.
    """

    config: RunConfig
    task: Task
    samples: Mapping[str, Samples]
    parts: Sequence[Indices]
    labels: NDArray[np.int64] | None
    node_local_classes: tuple[str, ...] | None = None
    callbacks: tuple[Callback, ...] = ()


class Backend(Protocol):
    """Interface for running tasks and predictions; every backend gives the same results."""

    @property
    def devices(self) -> Collection[str]:
        """The names of the devices that clients have computed on so far."""

    def execute(self, request: PhaseRequest) -> Iterator[Event]:
        """Run the request's tasks and yield events as they happen, each call's sums last.

        Raises:
            RunError: If the actors cannot be kept alive.
            InterruptedRunError: If the run was asked to stop.
        """

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Call a stage of the aggregation where calls of the last requests ran.

        Args:
            stage: The stage.
            question: What it is asked, by `Stage.answer`.
            messages: Call to the question's message.

        Returns:
            Call to answer, or `Late` if its process was ended because it took too
            long; calls whose process is lost are absent.
        """

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks, in order."""

    def take_losses(self) -> list[str]:
        """Return why processes were lost while predicting, since the last call."""

    def tally(self, server: ServerState, clients: Sequence[int]) -> list[Tally | None]:
        """Count clusters and classes in each client's node-local data.

        Returns:
            One tally per client, in order; None for a client that cannot be reached.
        """

    def store(self, packed: Packed) -> Handle:
        """Make tensors available to clients and return a handle to them."""

    def fetch(self, handle: Handle) -> Packed:
        """Read the tensors behind a handle."""

    def rest(self) -> None:
        """End processes that have no work for a while; the next call starts new ones."""

    def close(self) -> None:
        """End the processes that the backend started."""
