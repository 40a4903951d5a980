"""Builds what a process needs to run clients: method, worker, predictor."""

import os
from collections.abc import Callable

import torch

from coterie.config.component import load_target, target_of
from coterie.contract.method import Method
from coterie.contract.seeds import derive_seed
from coterie.execution.backend import Workload
from coterie.execution.device import client_device
from coterie.execution.events import Handle
from coterie.execution.module_pool import ModulePool
from coterie.execution.packing import Packed
from coterie.execution.predictor import Predictor
from coterie.execution.silo_data import LocalData
from coterie.execution.trainer import local_trainer
from coterie.execution.worker import Deadline, Resolve, Worker


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
