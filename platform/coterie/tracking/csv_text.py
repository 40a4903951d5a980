"""CSV as text, with all digits of numbers and no cell that a spreadsheet would run."""

import csv
import io
from collections.abc import Iterable, Sequence

_FORMULA = ("=", "+", "-", "@", "\t")


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Return the rows as CSV, in which numbers read back unchanged; None is empty."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(cell, row) for row in rows)
    return text.getvalue()


def cell(value: object) -> object:
    """Return the value; text that a spreadsheet takes for a formula gets an apostrophe."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", " ")  # it would begin a row, and is not quoted
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
