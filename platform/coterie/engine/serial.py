"""The serial backend: the same turns, sums and predictions in this process, without Ray."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from coterie.config.component import load_target, target_of
from coterie.contract.method import Method
from coterie.contract.phase import Mean, Phase, ServerState, Tensors
from coterie.contract.seeds import derive_seed
from coterie.engine.backend import Workload
from coterie.engine.deadline import Deadline
from coterie.engine.device import client_device
from coterie.engine.events import Event, Handle, Order
from coterie.engine.local_data import LocalData, Tally
from coterie.engine.packing import Packed
from coterie.engine.predictor import Chunk, Predictor
from coterie.engine.trainer import local_trainer
from coterie.engine.worker import ModulePool, Resolve, Worker
from coterie.errors import ContractError
from coterie.networks.clusterer import Prediction


def build_method(workload: Workload) -> Method:
    """The method that the config names."""
    method: Method = load_target(target_of(workload.config.method))(
        workload.config.method, workload.task
    )
    return method


def same_object(handle: Handle) -> Packed:
    """What a handle refers to where handles are the tensors themselves."""
    packed: Packed = handle
    return packed


def build_worker(
    workload: Workload, stop: Callable[[], None], resolve: Resolve = same_object
) -> Worker:
    """A worker on the device that this process may use, its threads as configured."""
    config = workload.config
    torch.set_num_threads(config.cluster.threads_per_client)
    # Deterministic algorithms otherwise fill all new memory, so that reading it would show: a
    # fortieth of a small client's turn.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    # cuBLAS is deterministic only with a fixed workspace, set before CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    device = client_device(config)
    deadline = Deadline(config.faults.client_timeout_s, stop)
    return Worker(
        method=build_method(workload),
        samples=workload.samples,
        parts=workload.parts,
        labels=workload.labels,
        trainer=local_trainer(config, device, stop=deadline.check),
        pool=ModulePool(derive_seed(config.seed, "init")),
        device=device,
        deadline=deadline,
        resolve=resolve,
        local=None if workload.local is None else LocalData(config, workload.local),
    )


def build_predictor(worker: Worker, workload: Workload, stop: Callable[[], None]) -> Predictor:
    """A predictor over a worker's data, on the same device."""
    task = workload.task
    return Predictor(
        method=worker.method,
        samples=worker.samples,
        device=worker.device,
        augmentation=lambda: task.augmentation.build(task.shape),
        stop=stop,
    )


class SerialBackend:
    """Runs everything here, one client after the other.

    Args:
        workload: What to run.
        stop: Called between steps and batches; raises when the run is to stop.
    """

    name = "serial"
    actors = 1

    def __init__(self, workload: Workload, stop: Callable[[], None]) -> None:
        self._worker = build_worker(workload, stop)
        self._predictor = build_predictor(self._worker, workload, stop)
        self._calls = 0

    def execute(self, order: Order) -> Iterator[Event]:
        """Run the turns in the order of their clients."""
        self._calls += 1
        yield from self._worker.run(order, self._calls)

    def serve(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Run the method's server half."""
        return self._worker.method.server(server, phase, means, records)

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
        local, key = self._worker.local, str(self._calls)
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
