"""What is told of a table's columns that are no features."""

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.errors import listed, printable

_logger = logging.getLogger(__name__)

Cells = Callable[[str], Any]
"""Returns the first cells of a column, as an Arrow array."""
TEXT = frozenset({"string", "large_string", "string_view"})
"""Arrow's types of text."""
_LOOKED_AT = 10_000
"""Rows of a column of texts that are looked at for numbers."""


def tell_left_out(path: Path, schema: Any, known: Collection[str], cells: Cells | None) -> None:
    """Warn about columns that look like features: an index, dates, booleans, texts.

    Args:
        path: The table.
        schema: Arrow's schema of it.
        known: Columns that are features, or named for something else.
        cells: Those of a file whose types are guessed from its text: CSV.
    """
    left = [
        f"{printable(field.name) or 'one without a name'} ({type_of(field, cells)})"
        for field in schema
        if field.name not in known
    ]
    if left:
        _logger.warning(
            "%s: columns that are an index, or not numbers, are left out of the features: %s.",
            *(path, listed(left)),
        )


def type_of(field: Any, cells: Cells | None) -> str:
    """Return the type of a column; of numbers among which are texts, the first of these texts."""
    if cells is None or str(field.type) not in TEXT:
        return str(field.type)
    column = cells(field.name).slice(0, _LOOKED_AT).to_pylist()
    filled = [(row, cell) for row, cell in enumerate(column) if cell]
    texts = [(row, cell) for row, cell in filled if not _is_number(cell)]
    if 2 * len(texts) >= len(filled):
        return str(field.type)
    if not texts:
        return "numbers with a decimal comma"
    row, cell = texts[0]
    return f"numbers, but {printable(cell)[:40]!r} in row {row:,}"


def _is_number(cell: str) -> bool:
    with suppress(ValueError):
        float(cell.replace(",", "."))
        return True
    return False
