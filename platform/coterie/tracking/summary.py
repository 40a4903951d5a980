"""`summary.json`: status, final metrics and totals of a run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from coterie.config.plain_files import read_json
from coterie.config.record_names import Status
from coterie.errors import DataError, damage, printable
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.metrics_log import finite, flat

Numbers = dict[str, float | None]


class _Written(TypedDict):
    """The types of a summary's required fields, and of the optional ones that are read."""

    status: str
    method: str
    rounds: int
    clients: int
    metrics: dict[str, dict[str, float | Numbers | None]]
    bytes: Numbers
    failures: list[str]
    seconds: Numbers
    privacy: NotRequired[dict[str, float | str]]
    commit: NotRequired[str]
    device: NotRequired[str]
    error: NotRequired[str]


_WRITTEN = TypeAdapter(_Written)

_WHERE_ANY = ("items_peer", "modelled_seconds", "simulated", "privacy", "error")
"""Fields that are in the file only if they are not empty."""
_TOTALS = ("bytes", "seconds", "items_peer", "modelled_seconds", "simulated", "privacy")


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The summary of a run; its fields are in the order of the file.

    Attributes:
        commit: The code's commit when the run ended, "-dirty" behind it with changes that are not
            committed.
        device: What its clients computed on.
        metrics: Final metrics by group: {"clustering": {"acc": 0.9, …}, "linear": {…}, …}.
        bytes: Bytes sent over the whole run: "down" from the server to clients, "up" from clients
            to the server, "peer" from clients to clients, and "evaluation" for evaluation, if data
            is node-local.
        failures: One sentence per dropped client or lost actor.
        seconds: Wall-clock times by purpose, with "total".
        items_peer: Rows sent from clients to clients by key: {"samples": 700}; in the file only if
            there are any.
        modelled_seconds: Transfer time over the config's links by direction; in the file only if
            the config has links.
        simulated: Simulated tasks of the whole run: {"dropped": 12, "stragglers": 30}; in the file
            only if the config simulates any.
        privacy: What differential privacy has spent: {"epsilon": 3.2, "delta": 1e-05,
            "unit": "sample"}; in the file only under `privacy.dp`.
        error: Why the run failed, as one sentence; None if it did not.
    """

    status: Status
    method: str
    dataset: str
    rounds: int
    clients: int
    seed: int
    commit: str
    device: str
    metrics: Mapping[str, Any] = field(default_factory=dict)
    bytes: Mapping[str, int]
    failures: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    items_peer: Mapping[str, int] = field(default_factory=dict)
    modelled_seconds: Mapping[str, float] = field(default_factory=dict)
    simulated: Mapping[str, int] = field(default_factory=dict)
    privacy: Mapping[str, float | str] = field(default_factory=dict)
    error: str | None = None

    def __post_init__(self) -> None:
        if (self.status == "failed") != (self.error is not None):
            raise ValueError(f"status={self.status!r}: give an error if, and only if, it failed")

    def as_dict(self) -> dict[str, Any]:
        """Return the object of `summary.json`; numbers that are not finite become None."""
        return {
            name: _plain(value)
            for name, value in vars(self).items()
            if name not in _WHERE_ANY or value not in ({}, None)
        }

    def numbers(self) -> dict[str, float]:
        """Return the final numbers by name, for `metrics.jsonl` and the loggers.

        Final metrics have the names of those between rounds (`clustering/acc`, `linear/acc`);
        totals of the run begin with `total/` (`total/bytes/up`, `total/seconds/training`).
        """
        used = {key: value for key, value in self.as_dict().items() if key in _TOTALS}
        counts = {"rounds": self.rounds, "failures": len(self.failures)}
        return {**flat(self.as_dict()["metrics"]), **flat({**used, **counts}, "total/")}

    def write(self, path: Path) -> None:
        """Write the summary atomically as strict JSON."""
        text = json.dumps(self.as_dict(), indent=2, ensure_ascii=False, allow_nan=False)
        write_text_atomically(path, text + "\n")


def read_summary(path: Path) -> dict[str, Any]:
    """Return the content of a `summary.json`; {} if there is none, as before the end of a run.

    Raises:
        DataError: If it holds what no run writes.
    """
    if not path.exists():
        return {}
    other = "restore it, or delete it and resume the run, which writes it again"
    try:
        found = read_json(path)
        _WRITTEN.validate_python(found, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        where = f"{printable(place)}: " if place else ""
        raise DataError(f"{path}: it is damaged ({where}{first['msg']}); {other}.") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: it is damaged ({damage(error)}); {other}.") from error
    return dict(found)


def _plain(value: Any) -> Any:
    """Return nested mappings and tuples of numbers and words for strict JSON."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, tuple):
        return [*map(_plain, value)]
    return value if isinstance(value, str) else finite(value)
