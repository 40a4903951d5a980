"""The report of a study: tables and figures of its runs, as files in its folder."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.evaluation.canvas import guarded
from coterie.studies.comparison_figure import Line, comparison_figure, panels_figure
from coterie.studies.comparison_table import ComparisonTable, foremost
from coterie.studies.curves import axes_of, band, metrics_of, points
from coterie.studies.paired import differences_csv, differences_figure, paired_differences
from coterie.studies.ranks import mean_ranks, ranks_figure
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.run_records import RunRecord

_FLAT = 10
"""Ratio of an axis's height to a curve's from which the curve looks flat."""
_OF_REPRESENTATIONS = ("tsne", "class_distances")
"""Figures of representations, which are compared by eye."""
_OVER_SEEDS = "mean of seeds, ended ones at their last value, ± one standard deviation"
_log = logging.getLogger(__name__)


def write_report(
    records: Sequence[RunRecord],
    out: Path,
    *,
    metrics: Sequence[str] = (),
    axes: Sequence[str] = (),
    about: str = "",
    note: str = "",
) -> tuple[ComparisonTable, list[Path]]:
    """Write `table.md`, `table.csv`, `runs.csv` and `figures/<axis>.png` of the completed runs.

    With several variants come `differences.csv`, `figures/differences.png`, and the runs' figures
    of representations side by side, and with several data sets `figures/ranks.png`.

    Args:
        records: The runs.
        out: The folder to write to.
        note: A sentence below the table in `table.md`.
        metrics: Columns of the table and panels of the figures; by default all final metrics and
            the bytes that were used, and up to four panels.
        axes: X-axes of the figures; by default all that the runs have.
        about: What was run, for the line below the figures.

    Returns:
        The table, and the files worth opening.
    """
    table = ComparisonTable.of(records, metrics)
    texts = {
        "table.md": table.markdown() + (f"\n{note}\n" if note else ""),
        "table.csv": table.csv(),
        "runs.csv": table.runs_csv(),
    }
    for name, text in texts.items():
        write_text_atomically(out / name, text)
    done = [record for record in records if record.completed]
    known = {name for run in done for part in (run.numbers, *run.rows) for name in part}
    for name in metrics:
        if done and name not in known:
            _log.warning("metrics=[%s]: no run has it; see runs.csv for those that exist.", name)
    figures = _draw(done, out / "figures", metrics, axes, about)
    figures += _side_by_side(done, out / "figures", about)
    return table, [out / "table.md", out / "table.csv", *figures, *_apart(table, out, about)]


def _apart(table: ComparisonTable, out: Path, about: str) -> list[Path]:
    """Write the differences between variants over seeds, and the ranks over data sets."""
    found, files = paired_differences(table), list[Path]()
    if not foremost(table) and any(record.completed for record in table.records):
        _log.warning(
            "There are no scores to compare, perhaps because the data has no labels; name its "
            "labels, or set evaluation.unsupervised=true for scores that need none."
        )
    if any(one.half is not None for one in found):
        files.append(out / "differences.csv")
        write_text_atomically(files[0], differences_csv(found))
        path = out / "figures" / "differences.png"
        with guarded(path, _log.warning):
            drawn = differences_figure(found, path, about)
            files += [] if drawn is None else [drawn]
    if (ranks := mean_ranks(table)) is not None:
        path = out / "figures" / "ranks.png"
        with guarded(path, _log.warning):
            files.append(ranks_figure(ranks, path, about))
    return files


def _side_by_side(done: Sequence[RunRecord], folder: Path, about: str) -> list[Path]:
    """Put the figures of representations of the variants' first runs side by side."""
    first = {record.label: record for record in reversed(done)}
    shown = {label: first[label].figures for label in dict.fromkeys(run.label for run in done)}
    drawn = []
    for name in _OF_REPRESENTATIONS:
        panels = {label: figures[name] for label, figures in shown.items() if name in figures}
        if len(panels) > 1:
            with guarded(folder / f"{name}.png", _log.warning):
                drawn.append(panels_figure(panels, folder / f"{name}.png", about))
    return drawn


def _draw(
    done: Sequence[RunRecord],
    folder: Path,
    metrics: Sequence[str],
    axes: Sequence[str],
    about: str,
) -> list[Path]:
    """Draw a figure per axis on which a run has points."""
    shown, drawn = metrics or metrics_of(done), []
    several = any(record.seed != done[0].seed for record in done)
    note = _OVER_SEEDS if several else ""
    for axis in axes or axes_of(done):
        panels = {metric: _lines(done, metric, axis) for metric in shown}
        panels = _apart_if_unlike({name: lines for name, lines in panels.items() if lines})
        if panels:
            path = folder / f"{axis.replace('/', '_')}.png"
            with guarded(path, _log.warning):
                drawn.append(comparison_figure(panels, axis, path, note, about))
        elif axis in axes and done:
            _log.warning("axes=[%s]: no run has such a column in its metrics.jsonl.", axis)
    return drawn


def _apart_if_unlike(panels: Mapping[str, dict[str, Line]]) -> dict[str, dict[str, Line]]:
    """Return the panels, with a panel of its own for a loss that would flatten the others."""
    found: dict[str, dict[str, Line]] = {}
    for metric, lines in panels.items():
        values = [mean[1] for (mean, _) in lines.values()]
        whole = np.ptp(np.concatenate(values))
        spans = [np.ptp(own) for own in values if len(own) > 1]
        if "loss" in metric.rpartition("/")[2] and spans and min(spans) * _FLAT < whole:
            found |= {f"{metric}\n{label}": {label: line} for label, line in lines.items()}
        else:
            found[metric] = lines
    return found


def _lines(done: Sequence[RunRecord], metric: str, axis: str) -> dict[str, Line]:
    """Return a line for each variant that has this metric."""
    lines = {}
    for label in dict.fromkeys(record.label for record in done):
        curves = [points(record, metric, axis) for record in done if record.label == label]
        mean, edges = band(curves)
        if mean.shape[1]:
            lines[label] = mean, edges
    return lines
