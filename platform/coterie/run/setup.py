"""Builds a run's parts from its config: data, method, participation, backend and evaluators."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from coterie.aggregation.compose import compose_stages
from coterie.aggregation.stage import Start
from coterie.config.component import load_target, target_of
from coterie.config.schema import RunConfig
from coterie.contract.callback import RunCallback
from coterie.contract.data import DataArrays, Indices
from coterie.contract.loaders import LoaderSamples
from coterie.contract.method import Method, build_method
from coterie.contract.own_module import FederatesModule
from coterie.contract.phase import ServerState
from coterie.contract.section_checks import check_sections
from coterie.contract.seeds import derive_seed
from coterie.errors import ConfigError, DataError
from coterie.evaluation.custom_metrics import build_metrics
from coterie.evaluation.evaluator import Evaluator
from coterie.evaluation.local_test_sets import LocalTestEvaluator, local_test_rows
from coterie.evaluation.module_scorer import ModuleScorer
from coterie.evaluation.node_local_evaluator import NodeLocalEvaluator
from coterie.evaluation.scorer import Scorer
from coterie.evaluation.unsupervised_evaluator import UnsupervisedEvaluator
from coterie.execution.backend import Backend, Workload
from coterie.execution.device import check_device, client_device
from coterie.execution.own_trainer import materialised
from coterie.execution.serial import SerialBackend
from coterie.execution.trainer import LightningTrainer
from coterie.rounds.participation import Participation
from coterie.run.callbacks import AnyCallback, build_callbacks, local_callbacks, run_callbacks
from coterie.run.checks import check_fit, check_shares, cluster_number
from coterie.run.data import RunData, read_data, task_of
from coterie.run.doubts import check_range
from coterie.run.memory import check_round, within_memory
from coterie.run.own_module_checks import check_own_module
from coterie.run.vmap_checks import check_vmap
from coterie.tracking.failure_log import FailureLog
from coterie.tracking.loggers import Tracker

if TYPE_CHECKING:
    from coterie.distributed.metrics import RunMetrics


@dataclass(frozen=True, kw_only=True)
class Assembly:
    """A run's parts, before anything runs.

    Attributes:
        server: The method's state before the first phase.
        participation: Draws each phase's clients.
        fingerprint: What a resumed run compares of its data with its checkpoint's.
    """

    data: DataArrays
    workload: Workload
    method: Method
    server: ServerState
    participation: Participation
    callbacks: tuple[RunCallback, ...] = ()
    fingerprint: Mapping[str, Any] = field(default_factory=dict)


def assemble(
    config: RunConfig, given: Sequence[AnyCallback] = (), *, trains: bool = True
) -> Assembly:
    """Read the data, split it over the clients and build the method.

    All of the config is checked here, before actors start.

    Args:
        config: The run's config.
        given: Callbacks besides the config's.
        trains: Whether the run is to train, or is only looked at.

    Raises:
        ConfigError: If the config's parts do not fit each other.
        DataError: If the data is missing or cannot be split as asked.
    """
    check_sections(config)
    check_shares(
        "evaluation.labelled_shares", config.evaluation.labelled_shares, config.labelled_pool
    )
    torch.set_num_threads(config.cluster.threads_per_client)
    callbacks = build_callbacks(config, given)
    with within_memory("the data", "lower data.size or data.limit", counted=False):
        read = read_data(config)
    participation = Participation(config, len(read.parts))
    workload = replace(_workload(config, read), callbacks=local_callbacks(callbacks))
    check_fit(config, workload.task, read.arrays)
    check_range(config, read.arrays)
    check_vmap(config, workload.task)
    method = build_method(config.method, workload.task)
    check_own_module(config, method, read.arrays)
    samples = read.arrays.samples
    if isinstance(method, FederatesModule) and isinstance(samples, LoaderSamples):
        whole = partial(materialised, source=partial(samples.sources.__getitem__, 0))
        method.fill(whole, derive_seed(config.seed, "init"))
    sizes = {client: len(rows) for client, rows in enumerate(read.parts)}
    # Builds the networks, which may not fit the data.
    with within_memory("the network", "lower the sizes under method and encoder"):
        server = method.init(sizes, derive_seed(config.seed, "init"))
    if (first := method.next(server)) is not None:
        participation.check(first)
        check_round(first, server, config.cluster, len(read.parts))
        start = Start(
            config=config,
            method=method,
            server=server,
            shape=workload.task.shape,
            sizes=sizes,
            cohort=participation.size,
            clients=lambda phase: participation.turnout(phase).clients,
            trains=trains,
        )
        compose_stages(config, method).check(start)
    _check_local_tests(config, read, method, server)
    return Assembly(
        data=read.arrays,
        workload=workload,
        method=method,
        server=server,
        participation=participation,
        callbacks=run_callbacks(callbacks),
        fingerprint=read.fingerprint,
    )


def make_backend(
    workload: Workload,
    stop: Callable[[], None],
    note: Callable[[str], None] = lambda text: None,
) -> Backend:
    """Build the configured backend; Ray is imported only for Ray's."""
    config = workload.config
    if config.cluster.backend == "serial":
        check_device(config.accelerator, client_device(config))
        return SerialBackend(workload, stop)
    from coterie.distributed.backend import RayBackend

    return RayBackend(workload, stop, note)


def make_metrics(backend: Backend, config: RunConfig, run: str) -> "RunMetrics | None":
    """Build the sender of a run's metrics to its cluster; None without a shared cluster."""
    if config.cluster.backend == "serial":
        return None
    from coterie.distributed.backend import RayBackend
    from coterie.distributed.cluster import started_here
    from coterie.distributed.metrics import RunMetrics

    assert isinstance(backend, RayBackend)
    return None if started_here() else RunMetrics(backend, config.experiment, run)


def make_scorer(
    config: RunConfig,
    assembly: Assembly,
    backend: Backend,
    *,
    tracker: Tracker,
    failures: FailureLog,
    note: Callable[[str], None],
) -> Scorer:
    """Build the evaluator of a run's server states, for node-local data or other data."""
    method, samples = assembly.method, assembly.data.samples
    if isinstance(method, FederatesModule) and isinstance(samples, LoaderSamples):
        device = client_device(config)
        trainer = LightningTrainer(
            accelerator=device.type, precision=config.precision, deterministic=config.deterministic
        )
        return ModuleScorer(
            config=config.evaluation,
            method=method,
            samples=samples,
            trainer=trainer,
            seed=config.seed,
            tracker=tracker,
            failures=failures,
            note=note,
        )
    evaluator, workload = make_evaluator(config, assembly, backend), assembly.workload
    if workload.node_local_classes is None:
        return evaluator
    clients = len(workload.parts)
    return NodeLocalEvaluator(
        config=config.evaluation,
        backend=backend,
        clients=clients,
        classifies=evaluator.classifies,
        outliers=evaluator.outliers,
    )


def make_evaluator(config: RunConfig, assembly: Assembly, backend: Backend) -> Evaluator:
    """Build the evaluator of data that the driver holds."""
    unsupervised = make_unsupervised_evaluator(config, assembly, backend)
    model = assembly.method.model_for(assembly.server, None)
    return Evaluator(
        config=config.evaluation,
        data=assembly.data,
        backend=backend,
        clusters=unsupervised.clusters,
        seed=config.seed,
        classifies=model.classifies,
        outliers=model.outliers,
        unsupervised=unsupervised if config.evaluation.unsupervised else None,
        local=_make_local_tests(config, assembly, backend),
        own=build_metrics(config.evaluation),
        parts=assembly.workload.parts if config.evaluation.spread else (),
    )


def make_unsupervised_evaluator(
    config: RunConfig, assembly: Assembly, backend: Backend
) -> UnsupervisedEvaluator:
    """Build the evaluator that needs no labels."""
    return UnsupervisedEvaluator(
        backend=backend,
        parts=assembly.workload.parts,
        clusters=cluster_number(config, len(assembly.data.classes)),
        seed=derive_seed(config.seed, "unsupervised"),
        batch_size=config.evaluation.batch_size,
        max_samples=config.evaluation.max_samples,
    )


def _make_local_tests(
    config: RunConfig, assembly: Assembly, backend: Backend
) -> LocalTestEvaluator | None:
    """Build the evaluator of each client's model on its own test set, if the config asks for it."""
    if not config.evaluation.local_tests:
        return None
    labels = assembly.data.test_labels
    assert labels is not None  # `assemble` has refused the run otherwise
    return LocalTestEvaluator(
        backend=backend,
        rows=_local_test_rows(config, assembly.data, assembly.workload.parts),
        labels=labels,
        batch_size=config.evaluation.batch_size,
    )


def _workload(config: RunConfig, read: RunData) -> Workload:
    needs_labels = load_target(target_of(config.method)).needs_labels
    data = read.arrays
    if needs_labels and not read.labelled:
        missing = "its samples have"
        if data.labels is not None:
            missing = f"{int((data.labels < 0).sum()):,} of {len(data.labels):,} samples have"
        raise DataError(
            f"data={data.name}: {missing} no label, and the method trains with labels; label or "
            "leave out these samples, or choose an unsupervised method."
        )
    samples = {} if read.node_local else {"train": data.samples}
    if data.test_samples is not None:
        samples["test"] = data.test_samples
    return Workload(
        config=config,
        task=task_of(config, data),
        samples=samples,
        parts=read.parts,
        labels=data.labels if needs_labels else None,
        node_local_classes=data.classes if read.node_local else None,
    )


def _local_test_rows(
    config: RunConfig, data: DataArrays, parts: Sequence[Indices]
) -> list[Indices]:
    """Return each client's rows of the test set."""
    seed = derive_seed(config.seed, "local tests")
    return local_test_rows(data, parts, config.evaluation.local_test_ratio, seed)


def _check_local_tests(
    config: RunConfig, read: RunData, method: Method, server: ServerState
) -> None:
    """Refuse `evaluation.local_tests` of clients without such samples or of no classifier."""
    if not config.evaluation.local_tests:
        return
    _local_test_rows(config, read.arrays, read.parts)
    if not method.model_for(server, None).classifies:
        name = target_of(config.method).rpartition(":")[2]
        raise ConfigError(
            f"evaluation.local_tests=true: method={name} learns no classes to be tested on; leave "
            "it out, or choose a supervised method."
        )
