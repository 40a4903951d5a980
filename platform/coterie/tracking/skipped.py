"""`skipped.csv`: the samples that could not be read and were left out, with the reasons."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.config.plain_files import read_bytes
from coterie.errors import DataError, reason
from coterie.tracking.atomic import write_text_atomically
from coterie.tracking.csv_text import cell, csv_text

if TYPE_CHECKING:  # it imports PyTorch, which a refused config need not wait for
    from coterie.contract.data import Unreadable

SKIPPED = "skipped.csv"


def write_skipped(path: Path, skipped: "Sequence[Unreadable]") -> None:
    """Write a table with the columns `file` and `reason`."""
    write_text_atomically(path, csv_text([("file", "reason"), *skipped]))


def check_same_skipped(path: Path, skipped: "Sequence[Unreadable]") -> None:
    """Refuse to resume a run if other samples are readable than before."""
    try:
        before = read_bytes(path).decode("utf-8") if path.is_file() else ""
        rows = [row for row in csv.reader(io.StringIO(before, newline="")) if row]
    except (ValueError, csv.Error) as error:
        raise DataError(
            f"{path}: it is damaged ({reason(error)}); restore it, or begin a new run."
        ) from error
    with_files = {str(cell(row[0])) for row in rows} - {"file"}
    now = {str(cell(unreadable.name)) for unreadable in skipped}
    if with_files != now:
        changed = min(with_files ^ now)
        raise DataError(
            f"{path}: other pictures can be read than when the run began, such as {changed}; put "
            "them back as they were, or begin a new run."
        )
