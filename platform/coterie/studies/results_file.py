"""The results of a study at one scale: a CSV file with a row for each cell and seed."""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from math import isfinite
from pathlib import Path
from typing import Any

from coterie.config.loading import dump_config
from coterie.config.plain_files import read_bytes
from coterie.config.schema import RunConfig
from coterie.errors import DataError
from coterie.studies.paper_study import Cell
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.claim import alone

_OWN = ("row", "column", "seed")
_ORIGIN = ("commit", "device", "config")
_ELSEWHERE = ("run_dir", "resume", "tracking", "checkpoint", "faults", "cluster", "accelerator")
"""Sections and keys of a config that say where and how it runs, not what."""


@dataclass(frozen=True)
class Result:
    """The numbers of one finished run.

    Attributes:
        cell: Its place in the table.
        numbers: Every number of its summary, by name: "clustering/nmi", "bytes/up", "seconds/…".
        commit: The code's commit, "-dirty" behind it with changes that are not committed.
        device: What it ran on.
        config: The digest of its config, "" if that is unknown.
    """

    cell: Cell
    seed: int
    numbers: Mapping[str, float]
    commit: str
    device: str
    config: str

    @property
    def key(self) -> tuple[str, str, int]:
        """The cell and seed, which identify a result in its file."""
        return self.cell.row, self.cell.column, self.seed


def config_digest(config: RunConfig) -> str:
    """Return a digest of all keys that decide a run's numbers."""
    values = {name: v for name, v in dump_config(config).items() if name not in _ELSEWHERE}
    for section, place in (("data", "root"), ("encoder", "path")):  # digests stand beside paths
        values[section] = {name: v for name, v in values[section].items() if name != place}
    text = json.dumps(values, sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=6).hexdigest()


def read_results(path: Path) -> tuple[Result, ...]:
    """Read a file of results; none if there is no such file.

    Raises:
        DataError: If it is no such file.
    """
    if not path.is_file():
        return ()
    try:
        text = read_bytes(path).decode("utf-8")
        found = tuple(map(_result, csv.DictReader(io.StringIO(text, newline=""))))
        _check_keys(found)
    except (KeyError, OSError, ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: it is not a file of a study's results ({error}); correct or remove it."
        ) from error
    return found


def _check_keys(results: Iterable[Result]) -> None:
    twice = [key for key, count in Counter(result.key for result in results).items() if count > 1]
    if twice:
        raise ValueError(f"two rows of {', '.join(map(str, twice[0]))}")


def _result(line: Mapping[str | None, Any]) -> Result:
    if None in line or None in line.values():
        raise ValueError(f"a row of {line.get('row')} has too many or too few values")
    named = {str(name): text for name, text in line.items() if name not in (*_OWN, *_ORIGIN)}
    if wrong := [name for name, text in named.items() if text and not isfinite(float(text))]:
        raise ValueError(f"{wrong[0]} of {line['row']} is {named[wrong[0]]}")
    return Result(
        Cell(line["row"], line["column"]),
        int(line["seed"]),
        {name: float(text) for name, text in named.items() if text},
        *(line[name] for name in _ORIGIN),
    )


def add_results(path: Path, new: Iterable[Result]) -> None:
    """Add results to a file; each replaces an earlier one of the same cell and seed.

    An earlier result with the same config and numbers stays, with the commit that it names. Studies
    that run at the same time wait for each other here, so that none undoes what another has added.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with alone(path.with_name(f".{path.name}.lock")):
        found = {result.key: result for result in read_results(path)}
        for result in new:
            then = found.get(result.key)
            if then is None or not _same(then, result):
                found[result.key] = result
        write_text_atomically(path, _text(found.values()))


def _same(then: Result, now: Result) -> bool:
    pairs = ((then.numbers.get(name), number) for name, number in now.numbers.items())
    return then.config == now.config and all(
        old is not None and _number(old) == _number(new) for old, new in pairs
    )


def _text(results: Iterable[Result]) -> str:
    """Return the file's text: results in order, and a column for every number in them."""
    results = list(results)
    names = list(dict.fromkeys(name for result in results for name in result.numbers))
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow([*_OWN, *names, *_ORIGIN])
    for result in results:
        numbers = [
            _number(result.numbers[name]) if name in result.numbers else "" for name in names
        ]
        lines.writerow([*result.key, *numbers, *(getattr(result, name) for name in _ORIGIN)])
    return text.getvalue()


def _number(number: float) -> str:
    """Format whole numbers in full, others with six digits."""
    return str(int(number)) if float(number).is_integer() else f"{number:.6g}"
