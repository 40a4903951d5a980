"""Formats for the terminal: tables of scores, sizes, durations, paths, lines that fit."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

_UNITS = ("B", "kB", "MB", "GB", "TB")
_NAME_WIDTH = 28
_NARROWEST_NAME = 12


def scores_table(rows: Mapping[str, Mapping[str, float]], width: int) -> Table:
    """Return a table of scores, at most 80 columns wide for up to five metrics.

    Args:
        rows: Name of a row to its metrics, for all of which higher is better; some may be missing.
        width: Columns of the terminal.

    Returns:
        A table with a column per metric in order of first appearance, three decimals, the best of
        each column in bold (all of them if several print alike). Where the terminal is too narrow,
        each metric has a line below the row's name.
    """
    metrics = list(dict.fromkeys(name for scores in rows.values() for name in scores))
    widths = {name: max(len(name), len(_score(0.0))) for name in metrics}
    if _NARROWEST_NAME + sum(3 + width for width in widths.values()) > width:
        return _below_each_other(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("", max_width=_NAME_WIDTH, overflow="fold")
    for name in metrics:
        table.add_column(name, justify="right", no_wrap=True, min_width=widths[name])
    best = {name: _best([scores.get(name) for scores in rows.values()]) for name in metrics}
    for label, scores in rows.items():
        cells = (_score(scores.get(name)) for name in metrics)
        table.add_row(
            Text(label),
            *(
                Text(cell, style="bold" if cell == best[name] else "")
                for name, cell in zip(metrics, cells, strict=True)
            ),
        )
    return table


def _below_each_other(rows: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with a line for each score, below the name of its row."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", no_wrap=True)
    for label, scores in rows.items():
        table.add_row(Text(label))
        for name, value in scores.items():
            table.add_row(Text(f"  {name}"), _score(value))
    return table


def without_auroc(scores: Mapping[str, float]) -> dict[str, float]:
    """Return the scores without areas under ROC curves, for which a terminal has no room."""
    return {name: value for name, value in scores.items() if not name.startswith("auroc")}


def format_bytes(count: float) -> str:
    """Return a size in decimal units with three significant digits: 999 B, 1.23 MB, 45.6 GB."""
    for unit in _UNITS[:-1]:
        if round(count) < 1000:
            return f"{_three_digits(count) if unit != 'B' else int(count)} {unit}"
        count /= 1000
    return f"{_three_digits(count)} {_UNITS[-1]}"


def format_seconds(seconds: float) -> str:
    """Return a duration: 4.2 s, 3:07 (minutes and seconds), 2:03:07 (hours too)."""
    if seconds < 59.95:  # beyond, it would print as 60.0 s
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def display_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside, else absolute."""
    absolute = path.absolute()
    current = Path.cwd()
    return str(absolute.relative_to(current) if absolute.is_relative_to(current) else absolute)


def score_texts(scores: Mapping[str, float]) -> list[str]:
    """Return scores with the last part of their names: `clustering/acc` is `acc 0.912`.

    If two scores share it, or it is that of the training's loss, they have their whole names:
    `linear acc 0.960`, `val loss 1.204`.
    """
    short = Counter(["loss", *(name.rpartition("/")[2] for name in scores)])
    return [
        f"{_plain_name(name, unique=short[name.rpartition('/')[2]] == 1)} {_score(value)}"
        for name, value in scores.items()
    ]


def _plain_name(name: str, *, unique: bool) -> str:
    return name.rpartition("/")[2] if unique else name.replace("/", " ")


def shorten(text: str, width: int) -> str:
    """Shorten text to at most `width` characters, ending in three dots."""
    return text if len(text) <= width else text[: width - 3] + "..."


def fit(parts: Sequence[str], width: int) -> str:
    """Join parts, the most important first, in a line of at most `width` characters.

    A part that does not fit is left out; a shorter one after it may still fit.
    """
    line = ""
    for part in parts:
        longer = f"{line}  {part}" if line else part
        line = longer if len(longer) <= width else line
    return line


def one_line(text: str) -> Text:
    """Return text for rich that is cut and not wrapped if it is too long."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _score(value: float | None) -> str:
    """Format with three decimals, or a dash without a number."""
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def _best(values: list[float | None]) -> str | None:
    """Return the highest number as text, or None without any."""
    numbers = [value for value in values if value is not None and not math.isnan(value)]
    return _score(max(numbers)) if numbers else None


def _three_digits(number: float) -> str:
    """Format three significant digits without an exponent."""
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"
