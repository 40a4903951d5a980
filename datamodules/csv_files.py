"""CSV files as programs write them: encoding, separator, and decimal sign.

Excel writes semicolons and decimal commas where that is the custom, and often Windows-1252 or
UTF-16; pandas writes an index column without a name.
"""

import codecs
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from coterie.datamodules.remote import opened
from coterie.errors import DataError, reason

SUFFIXES = (".csv", ".tsv", ".txt")
_BLOCK = 1 << 20
_WIDEST = 100_000
"""The most columns of a CSV file, which PyArrow reads all at once."""
_BOMS = ((codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_DELIMITERS = (",", ";", "\t", "|")
_UNEVEN = re.compile(r"Expected (\d+) columns, got (\d+)")
"""What Arrow says of a CSV file."""
_LINE_END = re.compile(r"\r\n|\r|\n")
_QUOTED = re.compile(r'"[^"]*"')
_TOLD = re.compile(r'"?sep=(.)"?\1*')
"""A first line that tells Excel which separator the cells have."""
_TELLS = re.compile(rb"\W*sep=")
_START = 64
"""Bytes with the first line, if it is such a one."""
_DECIMAL_COMMA = re.compile(r"(?<![\d,])-?\d+,\d+(?![\d,])")
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")
"""Names of the index that pandas writes along, in CSV and in parquet."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Dialect:
    """How a CSV file is written.

    Attributes:
        encoding: "utf-8", "utf-16", that of one of its byte orders, or "cp1252".
        delimiter: What parts the cells.
        decimal: The decimal sign.
        skipped: Lines before the header.
    """

    encoding: str = "utf-8"
    delimiter: str = ","
    decimal: str = "."
    skipped: int = 0


def is_csv(path: Path) -> bool:
    """Return whether a file is CSV by its name."""
    return path.suffix.lower() in SUFFIXES


def why_unreadable(error: Exception) -> str:
    """Return why a table cannot be read, in terms of its content."""
    uneven = _UNEVEN.search(str(error))
    if uneven is not None:
        return (
            f"a line has {uneven[2]} columns where the first has {uneven[1]}; take out what is no "
            "line of the table"
        )
    if "Parquet magic bytes" in str(error):
        return "it is neither CSV by its name nor Parquet by its content"
    return reason(error)


def is_index(column: str) -> bool:
    """Return whether a column is an index that pandas has written."""
    return _INDEX.fullmatch(column) is not None


def dialect_of(path: Path) -> Dialect:
    """Return how a file is written, after reading it once.

    Raises:
        DataError: If it has too many columns.
        OSError: If it cannot be read.
    """
    encoding = _encoding(path)
    with opened(path) as file:
        block = file.read(_BLOCK)
    lines = _LINE_END.split(block.decode(encoding, "replace"))  # splitlines parts at \v too
    many = any(line.count(sign) >= _WIDEST for line in lines[:2] for sign in _DELIMITERS)
    if many or (len(block) == _BLOCK and len(lines) == 1):
        raise DataError(
            f"{path}: its first line names more than {_WIDEST:,} columns, or is longer than 1 MiB; "
            "give the table as .npz or .parquet."
        )
    head = lines[0].lstrip("\ufeff")
    told = _TOLD.fullmatch(head)
    head = _QUOTED.sub("", head)
    delimiter = told[1] if told else max(_DELIMITERS, key=head.count) if head else ","
    comma = delimiter != "," and any(_DECIMAL_COMMA.search(line) for line in lines[1:100])
    return Dialect(encoding, delimiter, "," if comma else ".", skipped=1 if told else 0)


def _encoding(path: Path) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    with opened(path) as file:
        start = file.read(_BLOCK)
        for mark, encoding in _BOMS:
            if start.startswith(mark):
                return encoding
        if start[:100].count(0) > len(start[:100]) // 3:  # every second byte of a western text
            return "utf-16-be" if start[:1] == b"\0" else "utf-16-le"
        try:
            while start:
                decoder.decode(start)
                start = file.read(_BLOCK)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            _tell_windows(path)
            return "cp1252"
    return "utf-8"


@cache
def _tell_windows(path: Path) -> None:
    """Warn of an encoding, once for each file."""
    _logger.warning("%s: it is not UTF-8, and is read as Windows-1252.", path)


def place_of(path: Path, row: int) -> str:
    """Return where a row of a table, counted from 0, is: in CSV the line that editors show."""
    if not is_csv(path):
        return f"row {row:,}"
    with opened(path) as file:
        tells = _TELLS.match(file.read(_START).replace(b"\0", b"")) is not None
    return f"line {row + tells + 2:,}"


def read_csv(path: Path, source: Any, text: Sequence[str]) -> pa.Table:
    """Read a whole file.

    Only empty cells are missing, since a class may be called NA.

    Args:
        path: The file.
        source: It, or what is open of it.
        text: Columns that are text, whatever they look like.
    """
    read, parse, convert = _options(dialect_of(path), text, null_values=[""])
    return pa_csv.read_csv(source, read_options=read, parse_options=parse, convert_options=convert)


def open_csv(path: Path, text: Sequence[str]) -> Any:
    """Open a file to be read in batches; types are inferred from its first megabyte."""
    read, parse, convert = _options(dialect_of(path), text)
    return pa_csv.open_csv(path, read_options=read, parse_options=parse, convert_options=convert)


def _options(dialect: Dialect, text: Sequence[str], **convert: Any) -> tuple[Any, Any, Any]:
    types: Mapping[str, Any] = dict.fromkeys(text, pa.string())
    if "null_values" in convert:
        convert["strings_can_be_null"] = True
    return (
        pa_csv.ReadOptions(encoding=dialect.encoding, skip_rows=dialect.skipped),
        pa_csv.ParseOptions(delimiter=dialect.delimiter),
        pa_csv.ConvertOptions(column_types=types, decimal_point=dialect.decimal, **convert),
    )
