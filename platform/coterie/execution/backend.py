"""What runs a phase: actors of a Ray cluster, or this process."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from coterie.config.schema import RunConfig
from coterie.contract.clusterer import Prediction
from coterie.contract.data import Indices, Samples
from coterie.contract.method import Task
from coterie.contract.phase import Mean, Phase, ServerState, Tensors
from coterie.execution.events import Event, Handle, Order
from coterie.execution.packing import Packed
from coterie.execution.predictor import Chunk
from coterie.execution.silo_data import Tally


@dataclass(frozen=True, kw_only=True)
class Workload:
    """All that a process needs to run clients.

    Attributes:
        config: The run's config.
        task: What is learned.
        samples: "train" and, where there are any, "test" samples.
        parts: Client to its rows of the training samples.
        labels: Their classes, only if the method is supervised.
        local: Where data stays with its clients: all clients' classes. There are no `samples` and
            `labels` then, each process reads those of its own clients.
    """

    config: RunConfig
    task: Task
    samples: Mapping[str, Samples]
    parts: Sequence[Indices]
    labels: NDArray[np.int64] | None
    local: tuple[str, ...] | None = None


class Backend(Protocol):
    """Runs turns, the server half and predictions; results do not depend on which backend does."""

    name: str

    @property
    def actors(self) -> int:
        """How many processes run clients now."""

    def execute(self, order: Order) -> Iterator[Event]:
        """Run the order's turns; events come as they happen, each call's sums last.

        Raises:
            RunError: If the actors cannot be kept alive.
            InterruptedRunError: If the run was asked to stop.
        """

    def serve(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Run the method's server half."""

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks, in their order."""

    def take_losses(self) -> list[str]:
        """Why processes were lost while they predicted, since this was last asked."""

    def tally(self, server: ServerState, clients: Sequence[int]) -> list[Tally | None]:
        """Each client's own counts of clusters and classes, where data stays with its clients.

        Returns:
            In the clients' order; None for a client that cannot be reached.
        """

    def store(self, packed: Packed) -> Handle:
        """Make tensors available to clients."""

    def fetch(self, handle: Handle) -> Packed:
        """Read what a handle refers to."""

    def close(self) -> None:
        """End what was started."""
