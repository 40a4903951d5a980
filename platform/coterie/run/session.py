"""A run in progress: starts backend and tracker, trains, evaluates, and writes the outputs."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lightning.pytorch.loggers import Logger
from torch import nn

from coterie.aggregation.compose import compose_stages
from coterie.aggregation.noise import Noise, NoiseLedger
from coterie.aggregation.pipeline import Pipeline
from coterie.checkpoints.writer import CheckpointWriter
from coterie.config.about import about
from coterie.config.loading import dump_config
from coterie.config.record_names import Status
from coterie.config.schema import RunConfig
from coterie.contract.callback import Followed
from coterie.contract.clusterer import Clusterer
from coterie.contract.observer import Observer
from coterie.contract.seeds import derive_seed
from coterie.errors import DataError, RunError, reason
from coterie.evaluation.scorer import Evaluation
from coterie.execution.backend import Backend
from coterie.models.saved_model import with_head
from coterie.rounds.gather import FAILURES
from coterie.rounds.loop import Committed, Loop
from coterie.rounds.state import RunState
from coterie.run.client_groups import ClientGroups
from coterie.run.client_table import ClientRow, client_rows, write_clients
from coterie.run.doubts import doubtful_clusters
from coterie.run.fine_tuning import FineTuning
from coterie.run.interrupts import Interrupts
from coterie.run.lineage import pretrained_artifact
from coterie.run.outputs import draw_figures, summary_of, write_assignments, write_models
from coterie.run.recorder import Recorder
from coterie.run.recovery import Recovery
from coterie.run.setup import Assembly, make_backend, make_metrics, make_scorer
from coterie.tracking.failure_log import FailureLog
from coterie.tracking.loggers import Tracker, build_loggers
from coterie.tracking.metrics_log import MetricsLog, flat
from coterie.tracking.noise_file import NoiseFile
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_records import is_completed
from coterie.tracking.run_report import write_run_report
from coterie.tracking.summary import Summary

if TYPE_CHECKING:
    from coterie.distributed.metrics import RunMetrics


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result of a completed run."""

    evaluation: Evaluation
    model: Clusterer
    figures: tuple[Path, ...]


@dataclass
class Session:
    """A run in progress.

    Attributes:
        assembly: The run's parts, built from the config.
        extension: What extends the run that is in the directory, as a sentence; "" if nothing.
        remeasured: What its scores are measured differently by, as a sentence; "" if nothing.
        loggers: Loggers beside those of the config.
        state: Everything that changes, once training has begun.
        seconds: Purpose to wall-clock seconds.
    """

    config: RunConfig
    assembly: Assembly
    directory: RunDirectory
    view: Observer
    extension: str = ""
    remeasured: str = ""
    loggers: Sequence[Logger] = ()
    state: RunState | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _backend: Backend | None = None
    _recorder: Recorder | None = None
    _tracker: Tracker | None = None
    _loop: Loop | None = None
    _pipeline: Pipeline = field(default_factory=Pipeline)
    _metrics: "RunMetrics | None" = None

    def run(self, interrupts: Interrupts) -> Finished:
        """Start the backend, run the method's phases, evaluate and write the outputs.

        Raises:
            RunError: If the run cannot go on, for example because the disk is full.
        """
        try:
            state, recorder = self._train(interrupts)
        except OSError as error:
            raise self.system_error(error, "the run stopped") from error
        try:
            return self._finish(recorder, state)
        except OSError as error:
            raise self.system_error(error, "training is done") from error

    @property
    def is_moved(self) -> bool:
        """Whether the run's folder was moved or deleted since the run began to write to it."""
        return self._tracker is not None and not self.directory.config.is_file()

    def _commit(self, state: RunState, committed: Committed) -> None:
        """Record a phase in the run's folder."""
        self._check_place()
        if self._recorder is not None:
            self._recorder.commit(state, committed)

    def _check_place(self) -> None:
        if self.is_moved:
            path = self.directory.path
            raise RunError(
                f"run_dir={path}: the folder was moved or deleted while the run wrote to it; move "
                f"it back, and go on with resume=true run_dir={path}."
            )

    def conclude(
        self, status: Status, metrics: Mapping[str, Mapping[str, float]], error: str | None = None
    ) -> None:
        """Checkpoint a run that stopped, write summary.json and report.html, and close."""
        recorder, state = self._recorder, self.state
        try:
            if recorder is not None and state is not None:
                self._save(status, recorder, state)
                recorder.keep_losses(state)
            summary = self._summary(status, metrics, error)
            summary.write(self.directory.summary)
            if recorder is not None and state is not None:
                recorder.track_end(state, summary)
                write_clients(self.directory.clients, self._client_rows(state))
            write_run_report(self.directory, self.config)
        except OSError as problem:
            self.warn(f"{self.directory.summary}: cannot write ({problem.strerror}); make room.")
        except DataError as problem:
            self.warn(str(problem))
        finally:
            self.close(status)

    def close(self, status: Status) -> None:
        """Finish the tracker and end the backend's processes."""
        if self._tracker is not None:
            self._tracker.finish("success" if status == "completed" else "failed")
        if self._metrics is not None:
            self._metrics.close()
        if self._backend is not None:
            self._backend.close()

    def system_error(self, error: OSError, so_far: str) -> RunError:
        """Return the error to raise for a full disk or missing permissions."""
        return RunError(
            f"{error.filename or self.directory.path}: cannot write or read "
            f"({error.strerror or error}); {so_far}, so make room or change its permissions and "
            f"go on with resume=true run_dir={self.directory.path}."
        )

    @property
    def already_completed(self) -> bool:
        """Whether the directory's run was completed before, and this process has not trained."""
        return not self.trained and is_completed(self.directory.summary)

    @property
    def trained(self) -> bool:
        """Whether a client has completed a task in this process."""
        return self._loop is not None and self._loop.has_run

    @property
    def has_run(self) -> bool:
        """Whether a client has completed a task, here or before a resume."""
        return self.trained or bool(self.state and self.state.phases)

    @property
    def failures(self) -> tuple[str, ...]:
        """All failures so far, one sentence each."""
        own = self.state.failures if self.state else []
        return (*own, *(self._tracker.problems if self._tracker else []))

    @property
    def dropped(self) -> int:
        """The number of dropped tasks so far."""
        return self.state.dropped if self.state else 0

    def _train(self, interrupts: Interrupts) -> tuple[RunState, Recorder]:
        begun = time.perf_counter()
        self._tracker = self._make_tracker()
        self._backend = make_backend(self.assembly.workload, interrupts.check, self.view.note)
        self._metrics = make_metrics(self._backend, self.config, self.directory.path.name)
        if self._metrics is not None:
            self.view = Followed(self.view, [self._metrics])
        failures = FailureLog(self.directory.path / FAILURES, self.view.note)
        self._recorder = self._make_recorder(
            self._backend, self._tracker, failures, interrupts.check
        )
        recovery = Recovery(
            config=self.config,
            start=self.assembly.server,
            checkpoints=self.directory.checkpoints,
            backend=self._backend,
            recorder=self._recorder,
            view=self.view,
            data=self.assembly.fingerprint,
        )
        self.state = recovery.begin()
        self._tracker.start()  # only now, since a resume may have been refused
        if (source := pretrained_artifact(self.config)) is not None:
            self._tracker.use_model(source)
        if self.extension or self.remeasured:
            self._extend()
        ledger = self._open_ledger(self.state)
        self._pipeline = compose_stages(self.config, self.assembly.method, ledger)
        self.seconds["start"] = time.perf_counter() - begun
        self._loop = Loop(
            method=self.assembly.method,
            backend=self._backend,
            workload=self.assembly.workload,
            observer=self.view,
            commit=self._commit,
            recover=recovery.recover,
            abandon=self._recorder.abandon,
            log_failure=failures.write,
            participation=self.assembly.participation,
            aggregation=self._pipeline,
            should_stop=lambda: any(each.should_stop for each in self.assembly.callbacks),
        )
        self._loop.run(self.state)
        return self.state, self._recorder

    def _save(self, status: Status, recorder: Recorder, state: RunState) -> None:
        """Checkpoint the last full phase of a run that stopped, or wait for its checkpoint."""
        if status == "interrupted":
            self.view.note(
                "Stopping after a checkpoint; a second Ctrl-C or SIGTERM ends the run at once."
            )
            recorder.checkpoint(state)
        elif status == "failed":
            self._save_what_there_is(recorder, state)
        else:
            recorder.writer.wait()

    def _save_what_there_is(self, recorder: Recorder, state: RunState) -> None:
        """Checkpoint the last full phase of a failed run, if this process has completed one."""
        try:
            if "training" in recorder.seconds and state.phases:
                recorder.checkpoint(state)
            else:
                recorder.writer.wait()
        except Exception as error:  # noqa: BLE001 - what ended the run is what has to be shown
            self.warn(
                f"{self.directory.checkpoints}: the last full phase could not be saved "
                f"({reason(error)}); the checkpoint before it stays."
            )

    def _extend(self) -> None:
        """Continue the directory's run with more rounds, or with other measurements."""
        self.directory.summary.unlink(missing_ok=True)
        self.directory.write_config(dump_config(self.config))
        if self.extension:
            self.view.note(f"Longer than before: {self.extension}")
        if self.remeasured:
            self.view.note(f"Not as before: {self.remeasured}")

    def _finish(self, recorder: Recorder, state: RunState) -> Finished:
        started = time.perf_counter()
        self._check_place()
        recorder.checkpoint(state)
        self.view.note("Evaluating the final model.")
        evaluation = recorder.evaluate(state)
        if doubt := doubtful_clusters(evaluation.assignments, evaluation.clusters):
            self.view.note(doubt)
        recorder.backend.rest()
        head = self._publishable(evaluation.head)
        model = with_head(self.assembly.method.model_for(state.server, None), head).eval()
        data, parts = self.assembly.data, self.assembly.workload.parts
        write_models(self.directory, model, recorder, state.server, data)
        write_assignments(self.directory.assignments, evaluation, parts, data)
        if recorder.groups is not None:
            recorder.groups.write(self.directory.client_groups, state.server)
        self.seconds["final_evaluation"] = time.perf_counter() - started
        figures: tuple[Path, ...] = ()
        if self.config.evaluation.figures:
            seed = derive_seed(self.config.seed, "figures") % 2**31
            folder, server = self.directory.figures, state.server
            drawn = draw_figures(
                folder, evaluation, data, recorder, server, seed=seed, tell=self.warn
            )
            figures = tuple(sorted({*drawn, *self.directory.figures.glob("*.png")}))
        recorder.tracker.log_table("clients", self._client_rows(state))
        recorder.tracker.log_figures(figures)
        about_model = {"about": about([self.config]), **flat(evaluation.metrics)}
        recorder.tracker.log_model(self.directory.model, about_model)
        self.seconds["outputs"] = time.perf_counter() - started - self.seconds["final_evaluation"]
        return Finished(evaluation=evaluation, model=model, figures=figures)

    def _publishable(self, head: nn.Module | None) -> nn.Module | None:
        """Return the head that the evaluation found, unless the model has to be private.

        It is made of the samples' own representations, which no noise protects.
        """
        if head is None or self.config.privacy.dp.clip is None:
            return head
        self.view.note(
            "The model has no clusters: those of the evaluation are means of samples, which "
            "privacy.dp does not cover."
        )
        return None

    def _open_ledger(self, state: RunState) -> NoiseLedger | None:
        """Return the run's noise key with its released sums; None without noise."""
        phase = self.assembly.method.next(state.server)
        by_clients = phase is not None and phase.epsilon is not None
        if self.config.privacy.dp.clip is None and not by_clients:
            return None
        file = NoiseFile(self.directory.noise)
        released = state.counts.get(Noise.name, 0)
        secret, spent = file.open(begun=bool(state.phases), released=released)
        return NoiseLedger(secret, spent, file.append)

    def _make_tracker(self) -> Tracker:
        config, path = self.config, self.directory.path
        name = f"{config.experiment}-{path.name}"
        values = dump_config(config)
        loggers = [*build_loggers(config.tracking, path, name, values), *self.loggers]
        log = MetricsLog(self.directory.metrics)
        return Tracker(log, loggers, config.tracking.client_rows, values)

    def _make_recorder(
        self, backend: Backend, tracker: Tracker, failures: FailureLog, check: Callable[[], None]
    ) -> Recorder:
        scorer = make_scorer(
            self.config,
            self.assembly,
            backend,
            tracker=tracker,
            failures=failures,
            note=self.view.note,
        )
        return Recorder(
            config=self.config,
            method=self.assembly.method,
            backend=backend,
            evaluator=scorer,
            tracker=tracker,
            observer=self.view,
            parts=self.assembly.workload.parts,
            clients=self._client_rows,
            groups=ClientGroups.of(self.config, self.assembly.method),
            fine_tuning=FineTuning.of(self.config, self.assembly, scorer, check),
            writer=CheckpointWriter(
                self.directory.checkpoints,
                backend,
                dump_config(self.config),
                self.config.checkpoint,
                self.warn,
                self.assembly.fingerprint,
            ),
        )

    def _client_rows(self, state: RunState) -> list[ClientRow]:
        grouped = ClientGroups.of(self.config, self.assembly.method)
        groups = None if grouped is None else grouped.now(state.server)
        return client_rows(self.assembly, state, groups)

    def warn(self, sentence: str) -> None:
        """Show a warning and keep it for the summary."""
        self.view.note(sentence)
        if self.state is not None:
            self.state.failures.append(sentence.rstrip("."))

    def _summary(
        self, status: Status, metrics: Mapping[str, Mapping[str, float]], error: str | None
    ) -> Summary:
        seconds = dict(self.seconds)
        if self._recorder is not None:
            seconds |= self._recorder.seconds
            seconds["checkpoints"] = self._recorder.writer.seconds
        return summary_of(
            self.assembly,
            self.state,
            status=status,
            metrics=metrics,
            failures=self.failures,
            seconds=seconds,
            privacy=self._pipeline.summary(),
            devices=self._backend.devices if self._backend is not None else (),
            error=error,
        )
