"""The serial backend: the same turns, sums and predictions in this process, without Ray."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from coterie.contract.clusterer import Prediction
from coterie.contract.phase import Mean, Phase, ServerState, Tensors
from coterie.errors import ContractError
from coterie.execution.backend import Workload
from coterie.execution.build import build_predictor, build_worker, same_object
from coterie.execution.events import Event, Handle, Order
from coterie.execution.packing import Packed
from coterie.execution.predictor import Chunk
from coterie.execution.silo_data import Tally


class SerialBackend:
    """Runs everything here, one client after the other.

    Args:
        workload: What to run.
        stop: Called between steps and batches; raises when the run is to stop.

    Attributes:
        worker: Runs the turns.
    """

    name = "serial"
    actors = 1

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self.worker = build_worker(workload, stop)
        self._predictor = build_predictor(self.worker, workload, stop)
        self._calls = 0

    def execute(self, order: Order) -> Iterator[Event]:
        """Run the turns in the order of their clients."""
        self._calls += 1
        yield from self.worker.run(order, self._calls)

    def serve(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Run the method's server half."""
        return self.worker.method.server(server, phase, means, records)

    def predict(self, server: ServerState, chunks: Sequence[Chunk]) -> list[Prediction]:
        """Predict chunks, in their order."""
        self._calls += 1
        return [self._predictor.predict(server, str(self._calls), chunk) for chunk in chunks]

    def take_losses(self) -> list[str]:
        """None: this process is the only one."""
        return []

    def tally(self, server: ServerState, clients: Sequence[int]) -> list[Tally | None]:
        """Each client's own counts of clusters and classes, where data stays with its clients."""
        self._calls += 1
        local, key = self.worker.local, str(self._calls)
        if local is None:
            raise ContractError("tally: the data is in one place; use predict.")
        return [local.tally(self._predictor, server, key, client) for client in clients]

    def store(self, packed: Packed) -> Handle:
        """The tensors themselves."""
        return packed

    def fetch(self, handle: Handle) -> Packed:
        """The tensors themselves."""
        return same_object(handle)

    def close(self) -> None:
        """Nothing was started."""
