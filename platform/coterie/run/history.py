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
_WORK = ("set_size", "steps", "time_step")
_NOT_OWN = {*RESERVED, *GROUPS, *_COUNTED, *_WORK, "absent", "stragglers", "epsilon", "loss"}
"""First parts of the columns that are no measure of a method's or a module's own."""


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


def _own_curves(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Return what a method or a module reported, without terms that are 0 throughout a stage.

    A name that two phases report in one round is a curve of each.
    """
    told: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        for name in row if row.get("scope") == "server" else ():
            if name.partition("/")[0] not in _NOT_OWN and is_number(row[name]):
                told.setdefault(name, []).append(row)
    curves = {}
    for name, every in told.items():
        used = {row["stage"] for row in every if row[name]}
        own = [row for row in every if not used or row["stage"] in used]
        if len({row["round"] for row in own}) == len(own):
            curves[name] = _curve(own, name)
            continue
        for phase in dict.fromkeys(row["phase"] for row in own):
            of_phase = [row for row in own if row["phase"] == phase]
            curves[f"{phase}/{name}"] = _curve(of_phase, name)
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
