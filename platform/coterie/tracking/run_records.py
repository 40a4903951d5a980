"""Reads finished runs back from their directories, to compare them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from coterie.config.plain_files import read_json
from coterie.config.record_names import RESERVED, Status
from coterie.tracking.metrics_log import flat, is_number, leaves, read_rows
from coterie.tracking.run_directory import RunDirectory

_ENDS: tuple[Status, ...] = get_args(Status)
Ended = Literal["completed", "failed", "interrupted", "stopped", "not started"]


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A run as read from its directory.

    Attributes:
        status: How the run ended; "stopped" if a search for hyperparameters has given it up.
        error: Why the run failed, as a sentence; "" if it did not.
        commit: The code's commit when the run ended; "" of one that has not.
        device: What its clients computed on; "" of one that has not ended.
        numbers: Every finite number of summary.json by its path: "clustering/acc", "bytes/up".
        scores: The names of the final metrics among them, in the order of summary.json.
        unscored: The names of final metrics that are not numbers, as after training that diverged.
        accounts: The names of what the run used: bytes by direction, modelled seconds. Wall-clock
            time is left out, because it depends on the machine and its load.
        rows: The server's rows of metrics.jsonl, in order.
        figures: The run's figures by name, such as "tsne".
    """

    label: str
    seed: int
    status: Ended
    error: str = ""
    commit: str = ""
    device: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    scores: tuple[str, ...] = ()
    unscored: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    rows: tuple[Mapping[str, Any], ...] = ()
    figures: Mapping[str, Path] = field(default_factory=dict)

    @property
    def completed(self) -> bool:
        """Whether the run completed."""
        return self.status == "completed"

    @property
    def dropped(self) -> int:
        """The number of dropped client tasks, without simulated ones."""
        return sum(row.get("dropped", 0) - row.get("dropped/simulated", 0) for row in self.rows)


def read_run(label: str, seed: int, folder: Path, failure: str = "") -> RunRecord:
    """Read a run's directory.

    Args:
        label: The run's variant.
        seed: The run's seed.
        folder: The run directory, which need not exist.
        failure: Why the run's process ended abnormally; "" if it did not. With a failure
            summary.json is ignored, since it belongs to an earlier attempt.
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
    metrics, seconds = groups.pop("metrics", {}), {"seconds": groups.pop("seconds", {})}
    scores = flat(metrics)
    accounts = flat(groups)
    return RunRecord(
        label=label,
        seed=seed,
        status=summary["status"],
        error=summary.get("error", ""),
        commit=summary["commit"],
        device=summary["device"],
        numbers={**scores, **accounts, **flat(seconds), "rounds": summary["rounds"]},
        scores=tuple(scores),
        unscored=tuple(name for name, value in leaves(metrics) if value is None),
        accounts=tuple(accounts),
        rows=tuple(_server_rows(directory.metrics)),
        figures={path.stem: path for path in sorted(directory.figures.glob("*.png"))},
    )


def is_completed(summary: Path) -> bool:
    """Return whether a summary.json is that of a completed run."""
    return _json(summary).get("status") == "completed"


def _json(path: Path) -> dict[str, Any]:
    """Return the content of a summary.json; {} if it is missing or damaged."""
    try:
        found = read_json(path)
    except (FileNotFoundError, ValueError):
        return {}
    if not (isinstance(found, dict) and found.get("status") in _ENDS):
        return {}
    rounds, origin = found.get("rounds"), (found.get("commit"), found.get("device"))
    whole = isinstance(rounds, int) and is_number(rounds)
    return dict(found) if whole and all(isinstance(part, str) for part in origin) else {}


def _server_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Return the server's rows with the numbers in them, without incomplete lines."""
    for row in read_rows(path, "server"):
        if isinstance(row.get("round"), int) and is_number(row["round"]):
            yield {
                name: value
                for name, value in row.items()
                if name in RESERVED or value is None or is_number(value)
            }
