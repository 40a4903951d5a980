"""A run's metrics along an axis, rounds or cumulative columns, and their mean over seeds."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coterie.studies.comparison_table import alternating
from coterie.tracking.run_records import RunRecord

Points = NDArray[np.float64]
"""A curve (2, n): positions on the axis, ascending, and values."""

ROUND, WALL_CLOCK = "round", "seconds"
_ADDS_UP = re.compile(r"(^|_)(bytes|steps|seconds)(_|$)")
_UNTIL = re.compile(r"(?P<axis>\S+) until (?P<metric>\S+) (?P<value>[\d.]+)")
_OVER = re.compile(r"(?P<how>mean|best) of (?P<metric>\S+)")
_LONGEST_NAME = 100
"""Longest name of a column that becomes an axis, since the figure's file is named after it."""
_LARGEST = 4
"""Panels of a figure by default."""


def axes_of(records: Iterable[RunRecord]) -> list[str]:
    """Return these runs' axes: rounds, and the bytes, steps and seconds that were spent.

    An axis is the first part of a column's name, if one of these words is in it:
    `modelled_seconds/up` and `modelled_seconds/peer` add up to `modelled_seconds`. Wall-clock
    `seconds` are left out, because they depend on the machine and its load.
    """
    used = dict.fromkeys(
        name.partition("/")[0]
        for record in records
        for row in record.rows
        for name, value in row.items()
        if value and _ADDS_UP.search(name.partition("/")[0])
        if len(name) <= _LONGEST_NAME and name.isprintable()
    )
    return [ROUND, *(name for name in used if name != WALL_CLOCK)]


def metrics_of(records: Iterable[RunRecord]) -> list[str]:
    """Return up to four final metrics that were tracked each round, for the figures.

    The first metric of every group comes before the second of any. Without such metrics they are
    the loss and those that were measured at the end alone.
    """
    records = list(records)
    tracked = {name for record in records for row in record.rows for name in row}
    final = dict.fromkeys(name for record in records for name in record.scores)
    found = alternating(name for name in final if name in tracked)[:_LARGEST]
    loss = ["loss"] if "loss" in tracked else []
    return found or [*loss, *alternating(final)][:_LARGEST]


def points(record: RunRecord, metric: str, axis: str) -> Points:
    """Return a metric of one run along an axis, with the final value at its end.

    Args:
        record: The run.
        metric: A column of metrics.jsonl; the final value is that of summary.json.
        axis: `round`; or a column, summed over the phases so far; or the part before the slash of
            several columns, whose sum is taken: `bytes` is `bytes/down`, `bytes/up` and
            `bytes/peer`.
    """
    places, found = _places(record.rows, axis), list[tuple[float, float]]()
    if not places:
        return np.empty((2, 0))
    final, last = metric in record.scores, record.rows[-1]["round"]
    for place, row in zip(places, record.rows, strict=True):
        if row.get(metric) is not None and not (final and row["round"] == last):
            found.append((place, float(row[metric])))
    if final:  # in place of the last round's, because it uses all samples
        found.append((places[-1], record.numbers[metric]))
    return np.array(found, dtype=np.float64).reshape(-1, 2).T


def from_rounds(record: RunRecord, name: str) -> float | None:
    """Return a number that a study takes from a run's rounds instead of its final scores.

    Args:
        record: The run.
        name: "mean of proximity" or "best of local/acc", the mean and the highest of a metric over
            the rounds that have it; or "bytes/peer until linear/acc 0.8", the first position on an
            axis at which a metric was measured to be as high.

    Returns:
        The number; None if no round has it, or the name is of neither form.
    """
    if parts := _UNTIL.fullmatch(name):
        places, found = points(record, parts["metric"], parts["axis"])
        high = np.flatnonzero(found >= float(parts["value"]))
        return float(places[high[0]]) if len(high) else None
    if not (parts := _OVER.fullmatch(name)):
        return None
    metric = parts["metric"]
    values = [float(row[metric]) for row in record.rows if row.get(metric) is not None]
    if parts["how"] == "mean":
        return float(np.mean(values)) if values else None
    return max(
        [*values, *(record.numbers[n] for n in [metric] if n in record.numbers)], default=None
    )


def band(curves: Sequence[Points]) -> tuple[Points, Points | None]:
    """Return the mean of curves, and the band of one sample standard deviation around it.

    Curves are interpolated linearly, because bytes and seconds differ between seeds, from where all
    have begun; one that has ended keeps its last value, so that the mean ends at that of the table.
    Curves of a single point each become one point at their mean.

    Returns:
        The mean (2, n), and (2, n) the lower and the upper edge; None for a single curve.
    """
    curves = [curve for curve in curves if curve.shape[1]]
    if not curves:
        return np.empty((2, 0)), None
    places = np.unique(np.concatenate([curve[0] for curve in curves]))
    places = places[places >= max(curve[0, 0] for curve in curves)]
    values = np.stack([np.interp(places, *curve) for curve in curves])
    if all(curve.shape[1] == 1 for curve in curves):
        ends = np.stack([curve[:, -1:] for curve in curves])
        places, values = ends[:, 0].mean(axis=0), ends[:, 1]
    mean = values.mean(axis=0)
    if len(curves) == 1:
        return np.stack([places, mean]), None
    deviation = values.std(axis=0, ddof=1)
    return np.stack([places, mean]), np.stack([mean - deviation, mean + deviation])


def _places(rows: Sequence[Mapping[str, Any]], axis: str) -> list[float]:
    """Return the position of each row on the axis; [] if the run has no such column."""
    if axis == ROUND:
        return [float(row["round"]) for row in rows]
    names = {name for row in rows for name in row}
    ways = {name for name in names if re.fullmatch(rf"{re.escape(axis)}/[^/]+", name)}
    columns = sorted({axis} if axis in names else ways)
    if not columns:
        return []
    added = [sum(float(row.get(column) or 0.0) for column in columns) for row in rows]
    return [float(place) for place in np.cumsum(added)]
