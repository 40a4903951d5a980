"""Trains the runs of a study as processes, in parallel as far as resources allow."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from coterie.commands.written import written
from coterie.config.schema import RunConfig
from coterie.distributed.run_resources import RunResources
from coterie.errors import ConfigError
from coterie.run.same_run import check_same_run, measured_otherwise
from coterie.studies.plan import Variant
from coterie.studies.run_process import RunProcess
from coterie.studies.study_view import StudyView
from coterie.tracking.claim import is_claimed
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_records import RunRecord, read_run

_POLL_S = 0.2
_CHILD = (sys.executable, "-P", "-m", "coterie.studies.child")
"""`-P`: nothing is imported from the current folder, which may be anybody's."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run of a study: one variant with one seed.

    Attributes:
        folder: The run directory; the output of its process goes to `<folder>.log`.
    """

    variant: Variant
    seed: int
    folder: Path
    config: RunConfig

    @property
    def name(self) -> str:
        """The run's name in the terminal."""
        return f"{self.variant.label} seed {self.seed}"

    @property
    def log(self) -> Path:
        """The file with the output of the run's process."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def command(self) -> tuple[str, ...]:
        """The command that starts or resumes the run."""
        own = (f"run_dir={written(str(self.folder))}", "resume=true", "tracking.progress=lines")
        return (*_CHILD, *self.variant.arguments(self.seed), *own, *self._group)

    @property
    def _group(self) -> tuple[str, ...]:
        """W&B's group of the study's runs, unless the config names one."""
        tracking = self.config.tracking
        if "wandb" not in tracking.loggers or tracking.wandb.group is not None:
            return ()
        group = written(f"comparison-{self.folder.parents[1].name}")
        return (f"tracking.wandb.group={group}",)

    def record(self, failure: str = "") -> RunRecord:
        """Read the run's directory; a completed run that is to be extended is interrupted."""
        found = read_run(self.variant.label, self.seed, self.folder, failure)
        more = found.completed and check_finished(self)
        return replace(found, status="interrupted") if more else found

    def record_after(self, code: int, reason: str) -> RunRecord:
        """Read the run's directory after its process has ended with this code."""
        found = self.record()
        if code in (0, 3, 130) or (code == 1 and found.status == "failed"):
            return found
        return self.record(failure=reason)


def check_finished(run: PlannedRun) -> str:
    """Check that a finished run in this folder, if any, was trained with this config.

    Returns:
        What makes the planned run longer than the one in the folder, or what it is to be measured
        otherwise by, as sentences; "" if nothing.

    Raises:
        ConfigError: If it was trained with another config.
    """
    directory = RunDirectory(run.folder)
    if not directory.config.is_file():
        return ""
    try:
        stored = directory.read_config()
        return check_same_run(stored, run.config) + measured_otherwise(stored, run.config)
    except ConfigError as error:
        raise ConfigError(f"{run.name}: {error}") from error


def run_all(
    runs: Sequence[PlannedRun],
    limit: int | Literal["auto"],
    view: StudyView,
    check: Callable[[], None],
) -> list[RunRecord]:
    """Train runs in order, as many at a time as resources allow.

    Completed runs are skipped, unless they are to be longer. `check` raises to stop; every run
    then stops after a checkpoint.
    """
    records = {number: run.record() for number, run in enumerate(runs)}
    waiting = [number for number, record in records.items() if not record.completed]
    running: dict[int, RunProcess] = {}
    resources = RunResources(limit)
    view.begin(len(runs), len(waiting))
    held = _Held({number: runs[number] for number in waiting}, view)
    try:
        while waiting or running:
            check()
            records |= held.completed()
            waiting = [number for number in waiting if not records[number].completed]
            for number in [number for number in waiting if number not in held]:
                if not resources.take(number, runs[number].config):
                    break
                waiting.remove(number)
                own = {**os.environ, **resources.environment(number)}
                running[number] = RunProcess(runs[number].command, runs[number].log, own)
                view.started(runs[number].name)
            for number in [number for number, process in running.items() if process.ended]:
                process = running.pop(number)
                code = process.wait()
                records[number] = runs[number].record_after(code, process.reason(code))
                resources.give_back(number)
                view.ended(runs[number].name, records[number], process.seconds)
            lines = {runs[number].name: p.progress for number, p in running.items()}
            view.running(lines, len(waiting))
            time.sleep(_POLL_S)
    finally:
        _stop(running.values())
    return [records[number] for number in range(len(runs))]


class _Held:
    """The runs in whose directories another process still writes.

    It may belong to a study that was killed, and may be evaluating the final model, during which it
    does not react to signals.
    """

    def __init__(self, runs: Mapping[int, PlannedRun], view: StudyView) -> None:
        self._runs, self._view = runs, view
        self._since = {
            number: time.monotonic() for number, run in runs.items() if is_claimed(run.folder)
        }
        for number in self._since:
            view.note(
                f"{runs[number].name}: waiting for another process, which still writes in its "
                "folder"
            )

    def __contains__(self, number: int) -> bool:
        return number in self._since

    def completed(self) -> dict[int, RunRecord]:
        """Return records of the completed runs that were released since the last call."""
        free = [number for number in self._since if not is_claimed(self._runs[number].folder)]
        seconds = {number: time.monotonic() - self._since.pop(number) for number in free}
        records = {number: self._runs[number].record() for number in free}
        done = {number: record for number, record in records.items() if record.completed}
        for number, record in done.items():
            self._view.ended(self._runs[number].name, record, seconds[number])
        return done


def _stop(running: Collection[RunProcess]) -> None:
    """Stop every run after a checkpoint, and wait for it."""
    for process in running:
        process.interrupt()
    for process in running:
        process.wait()
