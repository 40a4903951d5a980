"""Limits on how far compressed data may grow: a small untrusted file must not fill the memory."""

_FREE = 1 << 28
_FACTOR = 100
_ROWS = 1 << 22
"""Rows that a table of any size may have."""
_ROWS_PER_BYTE = 100


def most_from(packed: int) -> int:
    """Return the size limit for `packed` compressed bytes: a hundredfold, but at least 256 MiB."""
    return max(_FREE, _FACTOR * packed)


def check_growth(packed: int, whole: int, where: str = "") -> None:
    """Refuse data that grows too much.

    Args:
        packed: The bytes that a file has.
        whole: The bytes that they become.
        where: Behind a blank, in which part of the file.

    Raises:
        ValueError: If so.
    """
    if whole > most_from(packed):
        raise ValueError(f"{packed} compressed bytes grow to {whole} or more{where}")


def check_rows(rows: int, size: int) -> None:
    """Refuse a table, or arrays, that claim far more rows than their bytes can hold.

    Raises:
        ValueError: If so.
    """
    if rows > max(_ROWS, _ROWS_PER_BYTE * size):
        raise ValueError(f"{size} bytes claim {rows} rows")
