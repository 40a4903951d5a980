"""`skipped.csv`: the samples that could not be read and were left out, with the reasons."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from coterie.contract.data import Unreadable
from coterie.errors import DataError
from coterie.tracking.atomic import write_text_atomically

SKIPPED = "skipped.csv"


def write_skipped(path: Path, skipped: Sequence[Unreadable]) -> None:
    """Write a table with the columns `file` and `reason`."""
    write_text_atomically(path, _table(skipped))


def check_same_skipped(path: Path, skipped: Sequence[Unreadable]) -> None:
    """Refuse to resume a run whose samples have become others.

    Raises:
        DataError: If other samples were left out when the run began.
    """
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    with_files = {row[0] for row in csv.reader(io.StringIO(before))} - {"file"}
    now = {unreadable.name for unreadable in skipped}
    if with_files != now:
        changed = min(with_files ^ now)
        raise DataError(
            f"{path}: other pictures can be read than when the run began, such as {changed}; put "
            "them back as they were, or begin a new run."
        )


def _table(skipped: Sequence[Unreadable]) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("file", "reason"))
    table.writerows(skipped)
    return text.getvalue()
