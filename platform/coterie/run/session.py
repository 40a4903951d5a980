"""One run's moving parts: directory, tracker, backend, state; and what is written at its end."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.checkpoints.writer import CheckpointWriter
from coterie.config.component import target_of
from coterie.config.loading import dump_config
from coterie.config.schema import RunConfig
from coterie.contract.clusterer import Clusterer
from coterie.contract.observer import Observer, Status
from coterie.contract.seeds import derive_seed
from coterie.errors import RunError
from coterie.evaluation.scorer import Evaluation
from coterie.execution.backend import Backend
from coterie.models.saved_model import with_head
from coterie.peers.links import modelled_seconds
from coterie.rounds.loop import Loop
from coterie.rounds.state import Ledger, RunState
from coterie.run.client_groups import ClientGroups
from coterie.run.interrupts import Interrupts
from coterie.run.outputs import draw_figures, write_assignments, write_models
from coterie.run.recorder import Recorder
from coterie.run.recovery import Recovery
from coterie.run.setup import Assembly, make_backend, make_scorer
from coterie.tracking.loggers import Tracker, build_loggers
from coterie.tracking.metrics_log import MetricsLog
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_records import is_completed
from coterie.tracking.summary import Summary

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Finished:
    """What a run gave when it ran to its end."""

    evaluation: Evaluation
    model: Clusterer
    figures: tuple[Path, ...]


@dataclass
class Session:
    """A run under way.

    Attributes:
        config: What runs.
        assembly: Its data, partition and method.
        directory: Where it writes.
        view: Shows progress.
        longer: Why it goes on longer than the run that is in the folder, as a sentence.
        state: All that changes, once it has begun.
        seconds: Wall-clock seconds by what they went into.
    """

    config: RunConfig
    assembly: Assembly
    directory: RunDirectory
    view: Observer
    longer: str = ""
    state: RunState | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    _backend: Backend | None = None
    _recorder: Recorder | None = None
    _tracker: Tracker | None = None

    def run(self, interrupts: Interrupts) -> Finished:
        """Start the backend, run the method's phases, evaluate, write the outputs.

        Raises:
            RunError: If the run cannot go on, for instance because the disk is full.
        """
        try:
            state, recorder = self._train(interrupts)
        except OSError as error:
            raise self.refused_by_system(error, "the run stopped") from error
        try:
            return self._finish(recorder, state)
        except OSError as error:
            raise self.refused_by_system(error, "training is done") from error

    def _train(self, interrupts: Interrupts) -> tuple[RunState, Recorder]:
        begun = time.perf_counter()
        self._tracker = self._make_tracker()
        self._backend = make_backend(self.assembly.workload, interrupts.check)
        self._recorder = self._make_recorder(self._backend, self._tracker)
        recovery = Recovery(
            self.config, self.assembly.server, self.directory.checkpoints, self._backend,
            self._recorder, self.view,
        )  # fmt: skip
        self.state = recovery.begin()
        if self.longer:
            self._go_on_longer()
        self.seconds["start"] = time.perf_counter() - begun
        Loop(
            self.assembly.method, self._backend, self.assembly.workload, self.view,
            self._recorder.commit, recovery.recover,
        ).run(self.state)  # fmt: skip
        return self.state, self._recorder

    def _go_on_longer(self) -> None:
        """From here on the folder is that of the longer run, which has not ended."""
        self.directory.summary.unlink(missing_ok=True)
        self.directory.write_config(dump_config(self.config))
        self.view.note(f"Longer than before: {self.longer}")

    def refused_by_system(self, error: OSError, so_far: str) -> RunError:
        """What to say of a full disk or of missing access, after so much of the run."""
        return RunError(
            f"{error.filename or self.directory.path}: cannot write or read "
            f"({error.strerror or error}); {so_far}, so make room or mend access and go on with "
            f"resume=true run_dir={self.directory.path}."
        )

    def conclude(
        self, status: Status, metrics: Mapping[str, Mapping[str, float]], error: str | None = None
    ) -> None:
        """Checkpoint if the run was interrupted, write summary.json, end what was started."""
        try:
            if status == "interrupted" and self._recorder is not None and self.state is not None:
                self.view.note("Stopping after a checkpoint; a second signal ends the run at once.")
                self._recorder.checkpoint(self.state)
            elif self._recorder is not None:
                self._recorder.writer.wait()  # the one under way is worth having
            summary = self._summary(status, metrics, error)
            summary.write(self.directory.summary)
            if self._recorder is not None and self.state is not None:
                self._recorder.track_end(self.state, summary)
        except OSError as problem:
            self._warn(f"{self.directory.summary}: cannot write ({problem.strerror}); make room.")
        finally:
            self.close(status)

    def close(self, status: Status) -> None:
        """End what was started."""
        if self._tracker is not None:
            self._tracker.finish("success" if status == "completed" else "failed")
        if self._backend is not None:
            self._backend.close()

    @property
    def stands(self) -> bool:
        """Whether the folder's run is finished, and this process has added nothing to it."""
        trained = self._recorder is not None and "training" in self._recorder.seconds
        return not trained and is_completed(self.directory.summary)

    @property
    def phases(self) -> int:
        """Phases that were completed, before a resume too."""
        return self.state.phases if self.state else 0

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed so far, as sentences."""
        own = self.state.failures if self.state else []
        return (*own, *(self._tracker.problems if self._tracker else []))

    @property
    def dropped(self) -> int:
        """Turns that were dropped so far."""
        return self.state.dropped if self.state else 0

    def _finish(self, recorder: Recorder, state: RunState) -> Finished:
        started = time.perf_counter()
        recorder.checkpoint(state)
        self.view.note("Evaluating the final model.")
        evaluation = recorder.evaluate(state)
        model = with_head(
            self.assembly.method.model_for(state.server, None), evaluation.centroids
        ).eval()
        data, parts = self.assembly.data, self.assembly.workload.parts
        write_models(self.directory, model, recorder, state.server, data)
        write_assignments(self.directory.assignments, evaluation, parts)
        if recorder.groups is not None:
            recorder.groups.write(self.directory.client_groups, state.server)
        recorder.close_curves(state.server.round, evaluation)
        self.seconds["final_evaluation"] = time.perf_counter() - started
        figures: tuple[Path, ...] = ()
        if self.config.evaluation.figures:
            seed = derive_seed(self.config.seed, "figures") % 2**31
            folder, server = self.directory.figures, state.server
            drawn = draw_figures(folder, evaluation, data, recorder, server, seed=seed)
            figures = tuple(sorted({*drawn, *self.directory.figures.glob("*.png")}))
        self.seconds["outputs"] = time.perf_counter() - started - self.seconds["final_evaluation"]
        return Finished(evaluation=evaluation, model=model, figures=figures)

    def _make_tracker(self) -> Tracker:
        config, path = self.config, self.directory.path
        name = f"{config.experiment}-{path.name}"
        loggers = build_loggers(config.tracking, path, name, dump_config(config))
        log = MetricsLog(self.directory.metrics)
        return Tracker(log, loggers, config.tracking.client_rows)

    def _make_recorder(self, backend: Backend, tracker: Tracker) -> Recorder:
        return Recorder(
            config=self.config,
            method=self.assembly.method,
            backend=backend,
            evaluator=make_scorer(self.config, self.assembly, backend),
            tracker=tracker,
            observer=self.view,
            parts=self.assembly.workload.parts,
            groups=ClientGroups.of(self.config, self.assembly.method),
            writer=CheckpointWriter(
                self.directory.checkpoints,
                backend,
                dump_config(self.config),
                self.config.checkpoint,
                self._warn,
            ),
        )

    def _warn(self, sentence: str) -> None:
        """Say it, and remember it for the summary."""
        self.view.note(sentence)
        if self.state is not None:
            self.state.failures.append(sentence.rstrip("."))

    def _summary(
        self, status: Status, metrics: Mapping[str, Mapping[str, float]], error: str | None
    ) -> Summary:
        state = self.state
        ledger = state.ledger if state else Ledger()
        seconds = dict(self.seconds)
        if self._recorder is not None:
            seconds |= self._recorder.seconds
            seconds["checkpoints"] = self._recorder.writer.seconds
        return Summary(
            status=status,
            method=target_of(self.config.method).rpartition(":")[2],
            dataset=self.assembly.data.name,
            rounds=state.server.round if state else 0,
            clients=len(self.assembly.workload.parts),
            seed=self.config.seed,
            metrics=metrics,
            bytes_down=ledger.down,
            bytes_up=ledger.up,
            bytes_peer=ledger.peer,
            bytes_evaluation=ledger.evaluation,
            items_peer=ledger.items,
            modelled_seconds=modelled_seconds(ledger.totals, self.config.links),
            simulated=state.simulated if state else {},
            failures=self.failures,
            seconds=seconds,
            error=error,
        )
