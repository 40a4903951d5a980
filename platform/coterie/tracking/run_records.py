"""What run directories say of runs that have ended, for whoever compares them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from coterie.tracking.metrics_log import flat, parse_row
from coterie.tracking.run_directory import RunDirectory

Ended = Literal["completed", "failed", "interrupted", "not started"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """One run as its directory has it.

    Attributes:
        label: What it is a run of.
        seed: Its seed.
        status: How it ended.
        error: Why it failed, as a sentence; "" unless it did.
        numbers: Every finite number of summary.json by its path: "clustering/acc", "bytes/up".
        scores: Which of them are final metrics, in the order of summary.json.
        accounts: Which say what the run used: bytes by direction, modelled seconds; not the
            wall-clock time, which depends on the machine and on what else it did.
        rows: The server's rows of metrics.jsonl, in order.
    """

    label: str
    seed: int
    status: Ended
    error: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()

    @property
    def completed(self) -> bool:
        """Whether it ran to its end."""
        return self.status == "completed"

    @property
    def dropped(self) -> int:
        """Turns of clients that were dropped, those left out that the config simulates."""
        return sum(row.get("dropped", 0) - row.get("dropped/simulated", 0) for row in self.rows)


def read_run(label: str, seed: int, folder: Path, failure: str = "") -> RunRecord:
    """Read a run's directory.

    Args:
        label: What it is a run of.
        seed: Its seed.
        folder: Its run directory, which need not exist.
        failure: Why its process ended, if that was no way to end: a summary.json of an earlier
            attempt does not count then.
    """
    directory = RunDirectory(folder)
    summary = {} if failure else _json(directory.summary)
    if not summary:
        status: Ended = "failed" if failure else "not started"
        begun = not failure and directory.config.is_file()
        return RunRecord(
            label=label, seed=seed, status="interrupted" if begun else status, error=failure
        )
    groups = {name: value for name, value in summary.items() if isinstance(value, Mapping)}
    scores, seconds = flat(groups.pop("metrics", {})), {"seconds": groups.pop("seconds", {})}
    accounts = flat(groups)
    return RunRecord(
        label=label,
        seed=seed,
        status=summary["status"],
        error=summary.get("error", ""),
        numbers={**scores, **accounts, **flat(seconds), "rounds": summary["rounds"]},
        scores=tuple(scores),
        accounts=tuple(accounts),
        rows=tuple(_server_rows(directory.metrics)),
    )


def is_completed(summary: Path) -> bool:
    """Whether a summary.json is of a run that ran to its end."""
    return _json(summary).get("status") == "completed"


def _json(path: Path) -> dict[str, Any]:
    """An object of a file; nothing where there is no whole one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) and "status" in found else {}


def _server_rows(path: Path) -> list[Mapping[str, Any]]:
    """The server's rows; a line that is not whole is left out."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [row for line in lines if (row := parse_row(line)) is not None]
    return [row for row in rows if row.get("scope") == "server"]
