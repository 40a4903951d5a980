"""The runs of a comparison as processes: side by side where there is room, stopped together."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from coterie.config.schema import RunConfig
from coterie.distributed.run_resources import RunResources
from coterie.errors import ConfigError
from coterie.run.recovery import check_same_run
from coterie.studies.plan import Variant
from coterie.studies.view import View
from coterie.tracking.claim import check_unclaimed
from coterie.tracking.finished import RunRecord, read_run
from coterie.tracking.run_directory import RunDirectory

_POLL_S = 0.2
_TAIL = 4096
_CHILD = (sys.executable, "-m", "coterie.studies.child")


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run of the comparison: one variant with one seed.

    Attributes:
        variant: What runs.
        seed: Its seed.
        folder: Its run directory; what its process prints goes to `<folder>.log`.
        config: What its command line stands for.
    """

    variant: Variant
    seed: int
    folder: Path
    config: RunConfig

    @property
    def name(self) -> str:
        """What it is called in the terminal."""
        return f"{self.variant.label} seed {self.seed}"

    @property
    def log(self) -> Path:
        """What its process prints."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def command(self) -> tuple[str, ...]:
        """The process that trains it, or goes on with it."""
        quoted = str(self.folder).replace("'", "\\'")
        own = (f"run_dir='{quoted}'", "resume=true", "tracking.progress=lines")
        return (*_CHILD, *self.variant.arguments(self.seed), *own)

    def record(self, failure: str = "") -> RunRecord:
        """What its directory says; one that is to be longer than it is has not completed."""
        found = read_run(self.variant.label, self.seed, self.folder, failure)
        longer = found.completed and check_finished(self)
        return replace(found, status="interrupted") if longer else found

    @property
    def held(self) -> bool:
        """Whether another process writes in its directory."""
        try:
            check_unclaimed(self.folder)
        except ConfigError:
            return True
        return False


class RunProcess:
    """A run under way.

    Its terminal's signals do not reach it, for its parent passes them on: once, so that it stops
    after a checkpoint, while two would end it at once.

    Args:
        run: What it runs.
        environment: What it is told besides this process's own environment.
    """

    def __init__(self, run: PlannedRun, environment: Mapping[str, str]) -> None:
        self.run = run
        self.began = time.monotonic()
        run.folder.parent.mkdir(parents=True, exist_ok=True)
        self._from = run.log.stat().st_size if run.log.exists() else 0
        with run.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own module, and no shell
                run.command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.began

    @property
    def progress(self) -> str:
        """The last round's line of its log, or "starting"."""
        lines = self._printed()
        return next((line for line in reversed(lines) if line.startswith("round ")), "starting")

    def result(self) -> RunRecord:
        """What became of it, once it has ended."""
        code = self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        record = self.run.record()
        if code in (0, 3, 130):
            return record
        if code == 1 and record.status == "failed":
            return record  # with its own sentence
        if code < 0:
            reason = f"ended by {signal.Signals(-code).name}"
        else:
            reason = next(iter(self._printed()[::-1]), f"ended with {code}")
        return self.run.record(failure=f"{reason.rstrip('.')} ({self.run.log}).")

    def interrupt(self) -> None:
        """Ask it to stop after a checkpoint."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def _printed(self) -> list[str]:
        """The last lines that this process has printed."""
        with self.run.log.open("rb") as log:
            end = log.seek(0, 2)
            log.seek(max(self._from, end - _TAIL))
            text = log.read().decode(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip()]


def check_finished(run: PlannedRun) -> str:
    """See that a run which is there is one of this comparison.

    Returns:
        What makes it longer than what is there; "" if nothing does.

    Raises:
        ConfigError: If it was trained with another config.
    """
    directory = RunDirectory(run.folder)
    if not directory.config.is_file():
        return ""
    try:
        return check_same_run(directory.read_config(), run.config)
    except ConfigError as error:
        raise ConfigError(f"{run.name}: {error}") from error


def run_all(
    runs: Sequence[PlannedRun], limit: int | None, view: View, check: Callable[[], None]
) -> list[RunRecord]:
    """Run them, in their order, as many at a time as there is room for.

    Args:
        runs: What to run; those that have completed are not run again, unless to be longer.
        limit: Runs at a time; None goes by what each needs.
        view: Is told.
        check: Raises when a signal has come; then all stop after a checkpoint.

    Returns:
        What became of each, in their order.
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
                running[number] = RunProcess(runs[number], resources.environment(number))
                view.started(runs[number].name)
            for number in [number for number, process in running.items() if process.ended]:
                process = running.pop(number)
                records[number] = process.result()
                resources.give_back(number)
                view.ended(process.run.name, records[number], process.seconds)
            view.show({p.run.name: p.progress for p in running.values()}, len(waiting))
            time.sleep(_POLL_S)
    finally:
        _stop(running)
    return [records[number] for number in range(len(runs))]


class _Held:
    """Runs in whose directories a process still writes, as of a comparison that was killed.

    It evaluates the final model, say, and does not look for a signal before it has.
    """

    def __init__(self, runs: Mapping[int, PlannedRun], view: View) -> None:
        self._runs, self._view = runs, view
        self._since = {number: time.monotonic() for number, run in runs.items() if run.held}
        for number in self._since:
            view.line(f"{runs[number].name}: waiting for the process that still writes in it")

    def __contains__(self, number: int) -> bool:
        return number in self._since

    def completed(self) -> dict[int, RunRecord]:
        """Those that have been left since the last call and are at their end; others can run."""
        free = [number for number in self._since if not self._runs[number].held]
        seconds = {number: time.monotonic() - self._since.pop(number) for number in free}
        records = {number: self._runs[number].record() for number in free}
        done = {number: record for number, record in records.items() if record.completed}
        for number, record in done.items():
            self._view.ended(self._runs[number].name, record, seconds[number])
        return done


def _stop(running: dict[int, RunProcess]) -> None:
    """Let each stop after a checkpoint, and wait for it."""
    for process in running.values():
        process.interrupt()
    for process in running.values():
        process.result()
