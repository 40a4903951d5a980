"""From a config to what a run needs: data, partition, task, method, backend."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.data import DataArrays, Indices
from coterie.contract.method import Method
from coterie.contract.phase import ServerState
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, DataError
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.local_test_sets import LocalTestEvaluator, local_test_rows
from coterie.evaluation.scorer import Scorer
from coterie.evaluation.silo_evaluator import SiloEvaluator
from coterie.evaluation.unsupervised_evaluator import UnsupervisedEvaluator
from coterie.execution.backend import Backend, Workload
from coterie.execution.build import build_method
from coterie.execution.device import check_device, client_device
from coterie.execution.serial import SerialBackend
from coterie.execution.silo_data import keeps_data_local
from coterie.rounds.participation import Participation
from coterie.run.checks import check_fit, cluster_number
from coterie.run.data import ask_clients, described, read_and_split, task_of


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """What a config stands for, before anything runs; `server` is the state at the start."""

    data: DataArrays
    workload: Workload
    method: Method
    server: ServerState


def assemble(config: RunConfig) -> Assembly:
    """Read the data, split it over the clients and build the method.

    Raises:
        ConfigError: If the parts do not fit each other.
        DataError: If the data is missing or cannot be split as asked.
    """
    torch.set_num_threads(config.cluster.threads_per_client)
    method_type = load_target(target_of(config.method))
    local = keeps_data_local(config)
    if local and config.labelled_pool:
        raise ConfigError(
            f"labelled_pool={config.labelled_pool:g}: data that stays with its clients is not "
            "fine-tuned with; leave it out."
        )
    surveys = ask_clients(config) if local else []
    data, parts = described(config, surveys) if local else read_and_split(config)
    # Refused now, not after the actors have started.
    participation = Participation(config, len(parts))
    labelled = data.labels is not None and bool((data.labels >= 0).all())
    if method_type.needs_labels and not (all(s.labelled for s in surveys) if local else labelled):
        raise DataError(
            f"data={data.name}: it lacks labels, which the method trains with; choose data with a "
            "label for every sample, or an unsupervised method."
        )
    samples = {} if local else {"train": data.samples}
    if data.test_samples is not None:
        samples["test"] = data.test_samples
    workload = Workload(
        config=config,
        task=task_of(config, data),
        samples=samples,
        parts=parts,
        labels=data.labels if method_type.needs_labels else None,
        local=data.classes if local else None,
    )
    check_fit(config, workload.task, data)
    method = build_method(workload)
    sizes = {client: len(rows) for client, rows in enumerate(parts)}
    # Now, so that networks which do not fit the data are refused before anything has started.
    server = method.init(sizes, derive_seed(config.seed, "init"))
    if (first := method.next(server)) is not None:
        participation.check(first)
    if config.evaluation.local_tests:
        _local_rows(config, data, parts)
        _check_classifies(method.model_for(server, None).classifies, config)
    return Assembly(data=data, workload=workload, method=method, server=server)


def make_backend(workload: Workload, stop: Callable[[], None]) -> Backend:
    """The backend that the config names; Ray is imported only for Ray's."""
    config = workload.config
    if config.cluster.backend == "serial":
        check_device(config.accelerator, client_device(config))
        return SerialBackend(workload, stop)
    from coterie.distributed.backend import RayBackend

    return RayBackend(workload, stop)


def make_scorer(config: RunConfig, assembly: Assembly, backend: Backend) -> Scorer:
    """What scores the run's server states, where data stays with its clients too."""
    evaluator, workload = make_evaluator(config, assembly, backend), assembly.workload
    if workload.local is None:
        return evaluator
    clients = len(workload.parts)
    return SiloEvaluator(config.evaluation, backend, clients, evaluator.classifies)


def make_evaluator(config: RunConfig, assembly: Assembly, backend: Backend) -> Evaluator:
    """What scores them from all samples."""
    blind = make_unsupervised_evaluator(config, assembly, backend)
    return Evaluator(
        config=config.evaluation,
        data=assembly.data,
        backend=backend,
        clusters=blind.clusters,
        seed=config.seed,
        classifies=assembly.method.model_for(assembly.server, None).classifies,
        unsupervised=blind if config.evaluation.unsupervised else None,
        local=make_local_tests(config, assembly, backend),
    )


def make_local_tests(
    config: RunConfig, assembly: Assembly, backend: Backend
) -> LocalTestEvaluator | None:
    """What scores each client's own model on its own test set, where the config asks for that."""
    if not config.evaluation.local_tests:
        return None
    labels = assembly.data.test_labels
    assert labels is not None  # else the run was refused
    return LocalTestEvaluator(
        backend=backend,
        rows=_local_rows(config, assembly.data, assembly.workload.parts),
        labels=labels,
        batch_size=config.evaluation.batch_size,
    )


def make_unsupervised_evaluator(
    config: RunConfig, assembly: Assembly, backend: Backend
) -> UnsupervisedEvaluator:
    """What scores them without labels."""
    return UnsupervisedEvaluator(
        backend=backend,
        parts=assembly.workload.parts,
        clusters=cluster_number(config, len(assembly.data.classes)),
        seed=derive_seed(config.seed, "unsupervised"),
        batch_size=config.evaluation.batch_size,
        max_samples=config.evaluation.max_samples,
    )


def _local_rows(config: RunConfig, data: DataArrays, parts: Sequence[Indices]) -> list[Indices]:
    """Each client's own rows of the test set."""
    seed = derive_seed(config.seed, "local tests")
    return local_test_rows(data, parts, config.evaluation.local_test_ratio, seed)


def _check_classifies(classifies: bool, config: RunConfig) -> None:
    if not classifies:
        name = target_of(config.method).rpartition(":")[2]
        raise ConfigError(
            f"evaluation.local_tests=true: method={name} learns no classes to be tested on; leave "
            "it out, or choose a supervised method."
        )
