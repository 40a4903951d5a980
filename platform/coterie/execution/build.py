"""Builds what a process runs: worker and predictor."""

from collections.abc import Callable
from functools import partial

import torch

from coterie.aggregation.compose import compose_stages
from coterie.compiled_folder import keep_compiled_private
from coterie.contract.method import build_method
from coterie.contract.own_module import FederatesModule
from coterie.contract.seeds import derive_seed
from coterie.execution.backend import Workload
from coterie.execution.compiling import compile_encoders
from coterie.execution.device import client_device
from coterie.execution.module_pool import ModulePool
from coterie.execution.node_local_data import NodeLocalData
from coterie.execution.predictor import ChunkPredictor
from coterie.execution.trainer import local_trainer
from coterie.execution.vmap_tasks import VmapTasks
from coterie.execution.vmap_trainer import VmapTrainer
from coterie.execution.worker import Deadline, Resolve, Worker


def build_worker(
    workload: Workload, stop: Callable[[], None], resolve: Resolve = lambda handle: handle
) -> Worker:
    """Build the worker of this process, on its device and with the configured threads.

    Args:
        workload: What to run.
        stop: Called between steps; raises when the run is to stop.
        resolve: Reads the tensors behind a handle; by default a handle is the tensors.
    """
    config, classes = workload.config, workload.node_local_classes
    torch.set_num_threads(config.cluster.threads_per_client)
    # With deterministic algorithms PyTorch fills new memory, which takes 2.5 % of a small task.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    device = client_device(config)
    if device.type != "cpu":  # embeddings and predictions too, whoever has trained here before
        torch.use_deterministic_algorithms(config.deterministic)
    deadline = Deadline(config.faults.client_timeout_s, stop)
    trainer = local_trainer(config, device, deadline.check, workload.callbacks)
    seed, vmapped = derive_seed(config.seed, "init"), None
    pool = ModulePool(seed)
    if config.compile:
        pool = ModulePool(seed, partial(compile_encoders, mode=config.compile))
    if isinstance(trainer, VmapTrainer):
        vmapped = VmapTasks(trainer=trainer, size=config.cluster.vmap_clients, pool=pool)
    method = build_method(config.method, workload.task)
    if config.compile or isinstance(method, FederatesModule):  # which may compile parts, too
        keep_compiled_private()
    return Worker(
        method=method,
        pipeline=compose_stages(config, method),
        samples=workload.samples,
        parts=workload.parts,
        labels=workload.labels,
        trainer=trainer,
        pool=pool,
        device=device,
        deadline=deadline,
        resolve=resolve,
        node_local_data=None if classes is None else NodeLocalData(config, classes),
        vmapped=vmapped,
    )


def build_predictor(worker: Worker, workload: Workload, stop: Callable[[], None]) -> ChunkPredictor:
    """Build a predictor over a worker's data, on the same device."""
    task = workload.task
    return ChunkPredictor(
        method=worker.method,
        samples=worker.samples,
        device=worker.device,
        augmentation=lambda: task.augmentation.build(task.shape),
        stop=stop,
    )


def warm_up() -> None:
    """Build an optimiser, because the first one in a process imports for about a second."""
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
