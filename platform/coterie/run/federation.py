"""The Python API: takes a config, returns a result."""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from lightning.pytorch.loggers import Logger
from numpy.typing import NDArray

from coterie.config.about import about
from coterie.config.component import target_of
from coterie.config.loading import dump_config
from coterie.config.record_names import Status
from coterie.config.schema import RunConfig
from coterie.contract.callback import Followed
from coterie.contract.clusterer import Clusterer
from coterie.contract.observer import Observer
from coterie.contract.own_module import FederatesModule
from coterie.errors import (
    ConfigError,
    CoterieError,
    DataError,
    InterruptedRunError,
    described,
    listed,
)
from coterie.evaluation.canvas import Figure, guarded
from coterie.evaluation.label_distribution import (
    ClassTable,
    class_spread,
    client_names,
    label_distribution_figure,
)
from coterie.evaluation.scorer import LOCAL, found_in_words, own_in_words, sizes_in_words
from coterie.networks.encoders import EncoderConfig
from coterie.run.callbacks import AnyCallback
from coterie.run.checks import cluster_key, cluster_number
from coterie.run.doubts import doubts
from coterie.run.ending import ending
from coterie.run.history import HOLDOUT, plot_history, read_history
from coterie.run.interrupts import Interrupts
from coterie.run.kept_layers import not_scored
from coterie.run.own_module_checks import notes_on_callbacks
from coterie.run.own_modules import OwnModules
from coterie.run.same_run import check_same_run, measured_otherwise
from coterie.run.session import Finished, Session
from coterie.run.setup import assemble
from coterie.tracking.claim import claimed
from coterie.tracking.console import ConsoleView
from coterie.tracking.formatting import without_auroc
from coterie.tracking.paths import check_ours
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.skipped import SKIPPED, check_same_skipped, write_skipped
from coterie.tracking.streams import open_missing

_DROPPED_EXIT_CODE = 3
_JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult:
    """The result of a completed run.

    Attributes:
        run_dir: The run's directory.
        metrics: Group to metrics, as in summary.json: `metrics["clustering"]["acc"]`.
        model: The encoder and, if the method clusters, its cluster head, in eval mode.
        assignments: Each training sample's cluster, int64 (n,), or None.
        failures: All failures, one sentence each.
        exit_code: 0, or 3 if clients were dropped.
        modules: The modules of a run of a LightningModule of the user's; None of other runs.
    """

    run_dir: Path
    metrics: Mapping[str, Mapping[str, float]]
    model: Clusterer
    assignments: NDArray[np.int64] | None
    failures: tuple[str, ...]
    exit_code: int
    modules: OwnModules | None = None

    def __repr__(self) -> str:
        """Return folder and scores; model and assignments would fill pages."""
        return f"RunResult(run_dir={str(self.run_dir)!r}, metrics={dict(self.metrics)!r})"

    @property
    def history(self) -> pa.Table:
        """The tracked numbers: a row per phase, and a last one with the final scores.

        Of a module of the user's, a row per client and phase too. `.to_pylist()` gives
        dictionaries, and `.to_pandas()` a data frame where pandas is there.
        """
        clients = self.modules is not None
        return read_history(RunDirectory(self.run_dir).metrics, clients=clients)

    @property
    def module(self) -> Any:
        """The user's module with the global values.

        Raises:
            ConfigError: If the run was of a method of Coterie's; `model` is then its model.
        """
        return self._own.module()

    def client_module(self, client: int) -> Any:
        """Return the user's module with the global values and the client's personal layers."""
        return self._own.client_module(client)

    def save(self, path: str | Path) -> None:
        """Write the user's module as a checkpoint that its `load_from_checkpoint` reads."""
        self._own.save(path)

    @property
    def _own(self) -> OwnModules:
        if self.modules is None:
            raise ConfigError("module: the run trained one of Coterie's methods; use model.")
        return self.modules

    def plot(self) -> Figure:
        """Return the loss of each stage and the scores over the rounds; notebooks show it."""
        return plot_history(self.history)


class Federation:
    """Runs one experiment, from its data to its run directory.

    Args:
        config: The experiment, for example `coterie.compose("experiment=fedmcc_digits")`.
        view: Shows progress; by default on the terminal or in the notebook, as
            `tracking.progress` says.
        callbacks: `RunCallback`s, which follow the run in this process, and Lightning callbacks,
            which follow the Trainer on each client; after those of the config.
        loggers: Lightning loggers that receive the metrics; after those of the config.

    Raises:
        ConfigError: If the config's parts do not fit each other or the machine.
        DataError: If the data is missing or does not fit.
    """

    def __init__(
        self,
        config: RunConfig,
        view: Observer | None = None,
        callbacks: Sequence[AnyCallback] = (),
        loggers: Sequence[Logger] = (),
    ) -> None:
        self._config = config = _as_submitted(config)
        self._loggers = tuple(loggers)
        self._assembly = assemble(config, callbacks)
        shown = view or ConsoleView(config.tracking.progress)
        self._view: Observer = Followed(shown, self._assembly.callbacks)

    def run(self) -> RunResult:
        """Run until the method is done.

        Raises:
            RunError: If the run cannot go on; the status in summary.json is then "failed".
            InterruptedRunError: After Ctrl-C or SIGTERM and a checkpoint.
        """
        open_missing()
        directory = self._directory()
        with claimed(directory.path):
            directory.sweep()
            return self._run(directory)

    def _run(self, directory: RunDirectory) -> RunResult:
        started = time.perf_counter()
        is_new = not directory.config.exists()
        session = Session(
            self._config, self._assembly, directory, self._view, loggers=self._loggers
        )
        with Interrupts() as interrupts:
            try:
                self._begin(session, is_new=is_new)
                finished = session.run(interrupts)
            except BaseException as raised:
                error = ending(raised, self._config, trained=session.trained)
                session.seconds["total"] = time.perf_counter() - started
                self._end(session, error)
                if is_new and _refused(session, error):
                    directory.discard()
                if error is raised:
                    raise
                raise error from raised
            session.seconds["total"] = time.perf_counter() - started
            session.conclude("completed", finished.evaluation.metrics)
        return self._result(session, finished, directory)

    def _end(self, session: Session, error: BaseException) -> None:
        """Close a run that did not complete, and show why."""
        interrupted = isinstance(error, InterruptedRunError)
        known = isinstance(error, CoterieError)
        sentence = str(error) if known else f"{type(error).__name__}: {described(error)}"
        status: Status = "interrupted" if interrupted else "failed"
        if _refused(session, error) or session.already_completed or session.is_moved:
            session.close(status)
        else:
            session.conclude(status, {}, None if interrupted else sentence)
        self._view.finish(status, error=sentence)
        if isinstance(error, CoterieError):
            error.reported = self._config.tracking.progress != "none"

    def _directory(self) -> RunDirectory:
        config = self._config
        if config.resume and config.run_dir is None:
            raise ConfigError(
                "resume=true: give the folder of the run to go on with as run_dir=DIR."
            )
        if config.resume and config.run_dir and RunDirectory.exists(config.run_dir):
            directory = RunDirectory.open(config.run_dir)
            check_ours("run_dir", directory.path)
            return directory
        return RunDirectory.create(config.run_dir, config.experiment, job=under_submitted_job())

    def _begin(self, session: Session, *, is_new: bool) -> None:
        """Write a new run's config, or compare it with that of the run to resume."""
        values, directory = dump_config(self._config), session.directory
        try:
            if is_new:
                if self._assembly.data.skipped:
                    write_skipped(directory.skipped, self._assembly.data.skipped)
                directory.write_config(values)
            else:
                check_same_skipped(directory.skipped, self._assembly.data.skipped)
                stored = directory.read_config()
                session.extension = check_same_run(stored, self._config)
                session.remeasured = measured_otherwise(stored, self._config)
            self._introduce(directory, session.warn)
        except OSError as error:
            raise session.system_error(error, "nothing was trained") from error

    def _introduce(self, directory: RunDirectory, warn: Callable[[str], None]) -> None:
        """Show what the run is and how classes are spread over clients, before training."""
        data, workload = self._assembly.data, self._assembly.workload
        details = {
            "method": self._name,
            "data": f"{data.name} ({len(data.samples):,} samples)",
            "clients": str(len(workload.parts)),
            "backend": self._config.cluster.backend,
            "seed": str(self._config.seed),
            **self._config.privacy.words,
            "into": str(directory.path),
        }
        if data.skipped:
            details["left out"] = f"{len(data.skipped):,} that cannot be read: {SKIPPED}"
        self._view.start(self._config.experiment, details)
        for sentence in self._notes():
            self._view.note(sentence)
        if workload.node_local_classes is not None:
            return
        counts, names = class_spread(data, workload.parts)
        clients = client_names(data, workload.parts)
        self._view.table(ClassTable(counts, names, clients))
        if self._config.evaluation.figures:
            directory.figures.mkdir(parents=True, exist_ok=True)
            path = directory.figures / "partition.png"
            with guarded(path, warn):
                label_distribution_figure(counts, names, path, clients, about([self._config]))

    def _notes(self) -> Iterator[str]:
        """Return what people should know of the run before it begins."""
        config, method, data = self._config, self._assembly.method, self._assembly.data
        if (sentence := not_scored(method, self._assembly.server)) is not None:
            yield sentence
        if "wandb" in config.tracking.loggers:
            from coterie.tracking.wandb_logger import offline_note  # a slow import

            if told := offline_note(config.tracking.wandb):
                yield told
        encoder = config.encoder
        if isinstance(encoder, EncoderConfig) and (advice := encoder.advice(data.shape)):
            yield advice
        own = isinstance(method, FederatesModule)
        yield from notes_on_callbacks(config)
        if own and any(getattr(c, "is_object", False) for c in (config.method, config.data)):
            yield (
                "Module or data is an object, so only the program that made it can resume this "
                "run, with resume=True."
            )
        # A method with a key of its own finds their number, or has refused.
        finds = cluster_key(config) != "evaluation.clusters"
        if not (own or method.needs_labels or finds or cluster_number(config, len(data.classes))):
            yield (
                "There will be no clusters, since the data has no classes to count; set "
                "evaluation.clusters to have some."
            )
        if not own:
            yield from doubts(config, data, self._assembly.workload.parts)
        if self._assembly.workload.node_local_classes is not None:
            sizes = zip(data.owner_names, self._assembly.workload.parts, strict=True)
            held = listed([f"{name} {len(rows):,}" for name, rows in sizes])
            yield (
                f"Data stays with its clients ({held} samples); only models and counts of clusters "
                "and classes come back."
            )

    @property
    def _name(self) -> str:
        return target_of(self._config.method).rpartition(":")[2]

    def _result(self, session: Session, finished: Finished, directory: RunDirectory) -> RunResult:
        metrics = finished.evaluation.metrics
        rows = {
            "clustering": self._name,
            "clustering_test": f"{self._name}, test set",
            "kmeans_raw": "k-means on raw samples",
            "train": f"{self._name}, training set",
            "val": f"{self._name}, validation set",
            "test": f"{self._name}, test set",
            HOLDOUT: f"{self._name}, held out",
            LOCAL: f"{self._name}, own test sets",
        }
        scores = {
            row: without_auroc(metrics[group]) for group, row in rows.items() if group in metrics
        }
        outputs = (*finished.figures, directory.summary, directory.report)
        for found in (
            found_in_words(metrics),
            "" if "clustering" in metrics else sizes_in_words(finished.evaluation.assignments),
            self._unscored(metrics),
            own_in_words(metrics),
            _dropped(session.dropped),
        ):
            if found:
                self._view.note(found)
        self._view.finish("completed", scores=scores, outputs=outputs)
        return RunResult(
            run_dir=directory.path,
            metrics=metrics,
            model=finished.model,
            assignments=finished.evaluation.assignments,
            failures=session.failures,
            exit_code=_DROPPED_EXIT_CODE if session.dropped else 0,
            modules=self._own_modules(session, directory),
        )

    def _unscored(self, metrics: Mapping[str, Any]) -> str:
        """Return a sentence if a module of the user's was never scored; "" otherwise."""
        method = self._assembly.method
        if metrics or not isinstance(method, FederatesModule):
            return ""
        if method.personal:
            return "Nothing scored the module; with personal layers only method.holdout=0.1 does."
        return (
            "Nothing scored the module; give the data module a validation or test loader, or set "
            "method.holdout=0.1 (holdout=0.1 in Python)."
        )

    def _own_modules(self, session: Session, directory: RunDirectory) -> OwnModules | None:
        method, state = self._assembly.method, session.state
        if not isinstance(method, FederatesModule) or state is None:
            return None
        return OwnModules(
            method=method,
            server=state.server,
            checkpoints=directory.checkpoints,
            clients=len(self._assembly.workload.parts),
        )


def _dropped(tasks: int) -> str:
    """Return a sentence on clients that were dropped; "" if none was."""
    if not tasks:
        return ""
    what = "1 task of a client was" if tasks == 1 else f"{tasks:,} tasks of clients were"
    return f"{what} dropped (failures.log says why), so the exit code is {_DROPPED_EXIT_CODE}."


def _refused(session: Session, error: BaseException) -> bool:
    """Return whether the run was refused before any client's task, so that it leaves no files."""
    return isinstance(error, ConfigError | DataError) and not session.has_run


def _as_submitted(config: RunConfig) -> RunConfig:
    """Return the config of a submitted job, which resumes the run that is in its directory."""
    again = under_submitted_job() and config.run_dir and RunDirectory.exists(config.run_dir)
    return config.model_copy(update={"resume": True}) if again else config


def under_submitted_job() -> bool:
    """Return whether `ray job submit` started this process, whose working folder is temporary."""
    return _JOB_VARIABLE in os.environ
