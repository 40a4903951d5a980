"""A run's history: its tracked numbers as a table, and its curves."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from coterie.evaluation.canvas import Figure
from coterie.evaluation.curves_figure import draw_curves
from coterie.tracking.metrics_log import read_rows

_SCORES = ("acc", "nmi", "ari")
_GROUPS = ("clustering", "test", "train", "local")


def read_history(metrics: Path, *, clients: bool = False) -> pa.Table:
    """Read the rows of a run as a whole from `metrics.jsonl`.

    Args:
        metrics: The file.
        clients: Whether to read the rows of single clients too, with a column "client".

    Returns:
        A row per phase, and a last one with the final numbers. Columns: round, stage, phase, step,
        scope ("server", for the last row "run") and every metric; what a row lacks is null.
    """
    rows = read_rows(metrics, "server", *(("client",) if clients else ()), "run")
    names = dict.fromkeys(name for row in rows for name in row)
    return pa.table({name: _column([row.get(name) for row in rows]) for name in names})


def plot_history(history: pa.Table) -> Figure:
    """Draw the loss of each stage and the scores of the first group that has any.

    Raises:
        DataError: If no phase has a loss or a score.
    """
    names = set(history.column_names)
    group = next((g for g in _GROUPS if any(f"{g}/{s}" in names for s in _SCORES)), _GROUPS[0])
    shown = {"loss": "loss", **{score: f"{group}/{score}" for score in _SCORES}}
    rounds = history["round"].to_pylist() if "round" in names else []
    stages: dict[str, int] = {}
    for round_, stage in zip(rounds, history["stage"].to_pylist() if rounds else [], strict=True):
        stages.setdefault(stage, round_)
    series = {
        label: [
            (round_, value)
            for round_, value in zip(rounds, history[name].to_pylist(), strict=True)
            if value is not None
        ]
        for label, name in shown.items()
        if name in names
    }
    return draw_curves(series, stages)


def _column(values: list[Any]) -> pa.Array:
    """Text or numbers; metrics are floats even where all of them are whole."""
    known = [value for value in values if value is not None]
    if any(isinstance(value, str) for value in known):
        return pa.array(values, pa.string())
    whole = all(isinstance(value, int) for value in known)
    return pa.array(values, pa.int64() if whole else pa.float64())
