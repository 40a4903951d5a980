"""A trial of a search: a run as a process, followed by the scores that it writes."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.distributed.tuning import Report
from coterie.studies.run_process import RunProcess
from coterie.tracking.claim import is_claimed
from coterie.tracking.metrics_log import read_rows

_POLL_S = 0.5
_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, kw_only=True)
class TrialOrder:
    """The command and folder of a trial's process, as plain values for any machine's Python.

    Attributes:
        command: The command that starts or resumes the run.
        here: The current folder of the process, from which relative paths are.
        objective: The score that is reported, by its name in metrics.jsonl.
        after: The last round that has been reported before.
        environment: The process's environment variables.
        gpu: Whether the trial takes the GPUs that Ray gives this process.
    """

    command: Sequence[str]
    here: Path
    folder: Path
    log: Path
    objective: str
    after: int
    environment: Mapping[str, str]
    gpu: bool


class TrialProcess:
    """A trial's process, with its objective after each evaluation."""

    def __init__(self, order: TrialOrder) -> None:
        self._order, self._after = order, order.after
        while is_claimed(order.folder):  # by a process of a killed search
            time.sleep(_POLL_S)
        given = {_VISIBLE: os.environ.get(_VISIBLE, "")} if order.gpu else {}
        environment = {**order.environment, **given}
        self._process = RunProcess(order.command, order.log, environment, order.here)

    def next(self) -> Report:
        """Wait for the next evaluation, or for the end of the run."""
        while True:
            ended = self._process.ended
            found = read_objective(self._order.folder, self._order.objective)
            new = [(round_, value) for round_, value in found if round_ > self._after]
            if new and not (ended and len(new) == 1):
                self._after, value = new[0]
                return Report(round=self._after, value=value)
            if ended:
                code = self._process.wait()
                reason = self._process.reason(code)
                round_, last = found[-1] if found else (self._after, None)
                return Report(round=round_, value=last, code=code, reason=reason)
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """Stop the run after a checkpoint, and wait for it."""
        self._process.release()
        self._process.wait()


def begin(orders: Mapping[str, TrialOrder], name: str) -> TrialProcess:
    """Start or resume the trial of this name."""
    return TrialProcess(orders[name])


def read_objective(folder: Path, objective: str) -> list[tuple[int, float]]:
    """Return the rounds of a run after which a score was measured, with the scores."""
    found = dict[int, float]()
    for row in read_rows(folder / "metrics.jsonl"):
        whole = row.get("scope") in {"server", "run"} and isinstance(row.get("round"), int)
        if whole and isinstance(row.get(objective), float | int):
            found[row["round"]] = row[objective]
    return sorted(found.items())
