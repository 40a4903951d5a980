"""What a comparison leaves in its folder: tables and figures."""

import logging
from collections.abc import Sequence
from pathlib import Path

from coterie.studies.comparison_figure import Line, comparison_figure
from coterie.studies.comparison_table import Comparison
from coterie.studies.curves import axes_of, band, metrics_of, points
from coterie.studies.plan import CompareConfig
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.run_records import RunRecord

_log = logging.getLogger(__name__)


def write_report(
    options: CompareConfig, records: Sequence[RunRecord], out: Path
) -> tuple[Comparison, list[Path]]:
    """Write `table.md`, `table.csv`, `runs.csv` and `figures/<axis>.png` of what has completed.

    Returns:
        The table, and the files worth opening.
    """
    comparison = Comparison.of(records, options.metrics)
    texts = {
        "table.md": comparison.markdown(),
        "table.csv": comparison.csv(),
        "runs.csv": comparison.runs_csv(),
    }
    for name, text in texts.items():
        write_text_atomically(out / name, text)
    done = [record for record in records if record.completed]
    for name in options.metrics:
        if done and not any(name in record.numbers for record in done):
            _log.warning("metrics=[%s]: no run has it; runs.csv has all that there are.", name)
    return comparison, [out / "table.md", out / "table.csv", *_draw(options, done, out / "figures")]


def _draw(options: CompareConfig, done: Sequence[RunRecord], folder: Path) -> list[Path]:
    """A figure per axis on which a run has points."""
    metrics, drawn = options.metrics or metrics_of(done), []
    several = any(record.seed != done[0].seed for record in done)
    note = "mean over the seeds, band: ± one standard deviation" if several else ""
    for axis in options.axes or axes_of(done):
        panels = {metric: _lines(done, metric, axis) for metric in metrics}
        panels = {metric: lines for metric, lines in panels.items() if lines}
        if panels:
            path = folder / f"{axis.replace('/', '_')}.png"
            drawn.append(comparison_figure(panels, axis, path, note))
        elif axis in options.axes and done:
            _log.warning("axes=[%s]: no run has such a column in its metrics.jsonl.", axis)
    return drawn


def _lines(done: Sequence[RunRecord], metric: str, axis: str) -> dict[str, Line]:
    """A line for each variant that has this metric."""
    lines = {}
    for label in dict.fromkeys(record.label for record in done):
        curves = [points(record, metric, axis) for record in done if record.label == label]
        mean, edges = band(curves)
        if mean.shape[1]:
            lines[label] = mean, edges
    return lines
