"""The serial backend: runs tasks, sums and predictions in this process, without Ray."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from coterie.contract.clusterer import Prediction
from coterie.contract.phase import ServerState
from coterie.errors import ContractError
from coterie.execution.backend import Workload
from coterie.execution.build import build_predictor, build_worker
from coterie.execution.device import device_name
from coterie.execution.events import Event, Handle, PhaseRequest
from coterie.execution.node_local_data import Tally
from coterie.execution.packing import Packed
from coterie.execution.predictor import Chunk


class SerialBackend:
    """Backend that runs one client after the other in this process.

    Args:
        workload: What to run.
        stop: Called between steps and batches; raises when the run is to stop.
    """

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self.worker = build_worker(workload, stop)
        self._predictor = build_predictor(self.worker, workload, stop)
        self.devices = (device_name(self.worker.device),)
        self._calls = 0

    def execute(self, request: PhaseRequest) -> Iterator[Event]:
        """Run the tasks in order."""
        self._calls += 1
        yield from self.worker.run(request, self._calls)

    def exchange(self, stage: str, question: str, messages: Mapping[int, Any]) -> dict[int, Any]:
        """Call a stage of the aggregation for each call."""
        answer = self.worker.pipeline.answer
        return {call: answer(stage, call, question, given) for call, given in messages.items()}

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks, in order."""
        self._calls += 1
        return [self._predictor.predict(server, str(self._calls), chunk) for chunk in chunks]

    def take_losses(self) -> list[str]:
        """Return nothing: this is the only process."""
        return []

    def tally(self, server: ServerState, clients: Sequence[int]) -> list[Tally | None]:
        """Count clusters and classes in each client's node-local data."""
        self._calls += 1
        node_local_data, key = self.worker.node_local_data, str(self._calls)
        if node_local_data is None:
            raise ContractError("tally: the data is not node-local; use predict.")
        return [node_local_data.tally(self._predictor, server, key, client) for client in clients]

    def store(self, packed: Packed) -> Handle:
        """Return the tensors themselves as their handle."""
        return packed

    def fetch(self, handle: Handle) -> Packed:
        """Return the tensors themselves."""
        packed: Packed = handle
        return packed

    def rest(self) -> None:
        """Do nothing: there is no other process."""

    def close(self) -> None:
        """Do nothing: there is no other process."""
