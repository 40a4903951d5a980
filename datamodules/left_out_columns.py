"""Warnings about a table's columns that are not used as features."""

import logging
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.datamodules.csv_files import place_of
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
    several = {name for name, count in Counter(schema.names).items() if count > 1}
    kinds = {
        field: str(field.type) if field.name in several else type_of(path, field, cells, shown=True)
        for field in schema
        if field.name not in known
    }
    left = [
        f"{printable(field.name) or 'one without a name'} ({kind})" for field, kind in kinds.items()
    ]
    if left:
        _logger.warning(
            "%s: columns that are an index, or not numbers, are left out of the features: %s.",
            *(path, listed(left)),
        )


def type_of(path: Path, field: Any, cells: Cells | None, *, shown: bool = False) -> str:
    """Return the type of a column, and where a column of numbers has text.

    Args:
        path: The table.
        field: Arrow's field of it.
        cells: As for `tell_left_out`.
        shown: Whether to show a text, for a message that stays on the machine of the data.
    """
    if str(field.type) not in TEXT:
        return str(field.type)
    if cells is None:
        return "text"
    column = cells(field.name).slice(0, _LOOKED_AT).to_pylist()
    filled = [(row, cell) for row, cell in enumerate(column) if cell]
    texts = [(row, cell) for row, cell in filled if not is_numeric(cell)]
    if not filled:
        return "empty"
    if not texts:
        return "numbers with commas"
    row, cell = texts[0]
    example = repr(printable(cell)[:40]) if shown else "text"
    if 2 * len(texts) < len(filled):
        return f"numbers, but {example} in {place_of(path, row)}"
    return f"text, such as {example}" if shown else "text"


def is_numeric(cell: str) -> bool:
    """Return whether a text is a number, with a decimal point or with commas."""
    with suppress(ValueError):
        float(cell.replace(",", "."))
        return True
    return False
