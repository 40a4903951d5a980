"""A run's history: its tracked numbers as a table, and its curves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.config.record_names import RESERVED
from coterie.evaluation.canvas import Figure
from coterie.evaluation.curves_figure import Curve, draw_curves
from coterie.tracking.metrics_log import is_number, read_rows
from coterie.tracking.score_names import is_own

VALIDATION = "validation"
"""The phase in which clients score a user's module on samples that they hold out."""
HOLDOUT = "holdout"
"""The group of final metrics of clients' held-out samples."""
_OF_CLIENTS = {*RESERVED, "seconds", "bytes/up"}
"""Columns of a client's row that its module has not reported."""
_SCORES = ("acc", "nmi", "ari")
_GROUPS = ("clustering", "test", "train", "local")


def read_history(metrics: Path, *, clients: bool = False) -> pa.Table:
    """Read the server's rows of a run from `metrics.jsonl`.

    `clients` adds the rows of single clients, with a column "client".

    Returns:
        A row per phase, and a last one with the final numbers. Columns: round, stage, phase, step,
        scope ("server", for the last row "run") and every metric; what a row lacks is null.
    """
    rows = read_rows(metrics, "server", *(("client",) if clients else ()), "run")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def plot_history(history: pa.Table) -> Figure:
    """Draw what `curves_of` finds in a history.

    Raises:
        DataError: If no phase has a loss or another number to draw.
    """
    return draw_curves(*curves_of(history.to_pylist()))


def curves_of(rows: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Curve], dict[str, int]]:
    """Return the curves in the rows of `metrics.jsonl`, without those of single clients."""
    own = [row for row in rows if row.get("scope") != "client"]
    columns = dict.fromkeys(name for row in own for name in row)
    groups = (g for g in _GROUPS if any(f"{g}/{score}" in columns for score in _SCORES))
    group = next(groups, _GROUPS[0])
    shown = {"loss": "loss", **{score: f"{group}/{score}" for score in _SCORES}}
    stages: dict[str, int] = {}
    for row in own:
        if row.get("scope") == "server":
            stages.setdefault(row["stage"], row["round"])
    curves = {label: _curve(own, name) for label, name in shown.items() if name in columns}
    curves |= _own_curves(own)
    return {label: curve for label, curve in curves.items() if curve}, stages


def held_out_scores(rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return what the last validation on clients' held-out samples found; {} if there was none.

    The server's row has other numbers too, so the names are those of the clients' rows.
    """
    held = [row for row in rows if row.get("phase") == VALIDATION]
    last: Mapping[str, Any] = next((row for row in reversed(held) if row["scope"] == "server"), {})
    names = {name for row in held if row["scope"] == "client" for name in row} - _OF_CLIENTS
    shown = names or {name for name in last if is_own(name)}
    return {name: value for name, value in last.items() if name in shown and is_number(value)}


def _own_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return what a method or a module reported, without terms that are 0 throughout a stage.

    A name that two phases report in one round is a curve of each, as in loggers.
    """
    told: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        last = row.get("scope") != "server"
        for name in filter(is_own, row):
            known = told.get(name, [])
            repeats = last and (not known or known[-1]["round"] == row["round"])
            if is_number(row[name]) and not repeats:
                of_stage = {key: known[-1][key] for key in ("stage", "phase")} if last else {}
                told[name] = [*known, {**row, **of_stage}]
    curves = {}
    for name, every in told.items():
        used = {row["stage"] for row in every if row[name]}
        own = [row for row in every if not used or row["stage"] in used]
        if len({row["round"] for row in own}) == len(own):
            curves[name] = _curve(own, name)
            continue
        for number, phase in enumerate(dict.fromkeys(row["phase"] for row in own)):
            of_phase = [row for row in own if row["phase"] == phase]
            curves[f"{phase}/{name}" if number else name] = _curve(of_phase, name)
    return curves


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["round"], row[name]) for row in rows if is_number(row.get(name))]


def _column(values: list[Any]) -> pa.Array:
    """Convert a column to text or numbers; metrics become floats even if all are whole."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return pa.array(values, pa.string())
    whole = all(isinstance(value, int) for value in known)
    return pa.array(values, pa.int64() if whole else pa.float64())
