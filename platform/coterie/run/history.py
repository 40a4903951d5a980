"""A run's history: its tracked numbers as a table, and its curves."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.evaluation.canvas import Figure
from coterie.evaluation.curves_figure import Curve, draw_curves
from coterie.tracking.metrics_log import RESERVED, is_number, read_rows
from coterie.tracking.score_names import GROUPS

_SCORES = ("acc", "nmi", "ari")
_GROUPS = ("clustering", "test", "train", "local")
_COUNTED = ("bytes", "items", "modelled_seconds", "seconds", "participants", "failures", "dropped")
_NOT_OWN = {*RESERVED, *GROUPS, *_COUNTED, "absent", "stragglers", "epsilon", "loss"}
"""First parts of the columns that no module reports."""
_MODULES = ("training", "validation")
"""Phases of a user's own module, whose every metric is drawn."""


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
    curves |= _module_curves(own)
    return {label: curve for label, curve in curves.items() if curve}, stages


def _module_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return what a user's module reported; a name that two phases report is a curve of each."""
    told = {phase: [row for row in rows if row.get("phase") == phase] for phase in _MODULES}
    phases: dict[str, list[str]] = {}
    for phase, own in told.items():
        for name in dict.fromkeys(name for row in own for name in row):
            if name.partition("/")[0] not in _NOT_OWN:
                phases.setdefault(name, []).append(phase)
    curves = {name: _curve(rows, name) for name, own in phases.items() if len(own) == 1}
    return curves | {
        f"{phase}/{name}": _curve(told[phase], name)
        for name, own in phases.items()
        if len(own) > 1
        for phase in own
    }


def _curve(rows: Sequence[Mapping[str, Any]], name: str) -> list[tuple[int, float]]:
    return [(row["round"], row[name]) for row in rows if is_number(row.get(name))]


def _column(values: list[Any]) -> pa.Array:
    """Convert a column to text or numbers; metrics become floats even if all are whole."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return pa.array(values, pa.string())
    whole = all(isinstance(value, int) for value in known)
    return pa.array(values, pa.int64() if whole else pa.float64())
