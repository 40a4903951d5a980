"""Which columns of a parquet or CSV table hold samples, names, clients and labels.

The samples are in the first of these: the column of pictures or files that the run's own table had
(`data.picture_column`); a column `image` or `img` (a picture's bytes, or a struct with a field
`bytes`); a column `path` or `file` (a picture's file, relative to the table's folder); a column of
lists of numbers; all columns of numbers except names, `sample`, `label`, `client`, `cluster`,
`confidence`, the run's own labels and clients, and pandas' index. Names are in `name`, `id` or the
like, or the files' paths, clients in `data.client_column` or `client`; in CSV these are text.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import filterfalse
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from coterie.config.component import Component
from coterie.config.loading import load_component
from coterie.datamodules.csv_files import is_index
from coterie.datamodules.custom_data import Range
from coterie.datamodules.left_out_columns import TEXT, Cells, tell_left_out, type_of
from coterie.errors import DataError, listed, printable

_PICTURES, _FILES = ("image", "img"), ("path", "file")
_NAMES = ("name", "id", "sample_id", "file_name", "filename")
CLIENT = "client"
"""The column of the samples' clients."""
READ_AS_TEXT = (*_NAMES, *_FILES, CLIENT)
"""Columns that are text in a CSV file, whatever they look like."""
_TOLD = frozenset({"label", CLIENT, "cluster", "confidence"})
_NO_FEATURES = frozenset({*_NAMES, *_TOLD, "sample"})
_BYTES = frozenset({"binary", "large_binary", "binary_view"})


class TableColumns(NamedTuple):
    """The columns of the table that a run trained on; empty if it trained on no table.

    Attributes:
        features: Columns of numbers; empty if nobody has named them.
        ranges: Of some of these, the numbers that become 0 and 1.
    """

    picture: str | None = None
    label: str | None = None
    client: str | None = None
    features: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float, float]] = MappingProxyType({})

    @property
    def named(self) -> tuple[str, ...]:
        """The columns of pictures, labels and clients."""
        return tuple(name for name in (self.picture, self.label, self.client) if name is not None)

    def client_in(self, names: Collection[str]) -> str | None:
        """Return the column of clients of a table with these columns, or None."""
        return next((name for name in (self.client, CLIENT) if name in names), None)


NO_COLUMNS = TableColumns()


class _Ranges(Component):
    feature_ranges: Mapping[str, Range] = {}


def columns_as_trained(data: object) -> TableColumns:
    """Return the columns that the section `data` of a run's stored config names.

    Raises:
        ConfigError: If its ranges are none.
    """
    keys = data.get("source", data) if isinstance(data, Mapping) else {}
    given = {name: keys.get(f"{name}_column") for name in ("picture", "label", "client")}
    named = {name: column for name, column in given.items() if isinstance(column, str)}
    features = keys.get("feature_columns")
    own = tuple(map(str, features)) if isinstance(features, list | tuple) else ()
    ranges = load_component(_Ranges, {"feature_ranges": keys.get("feature_ranges") or {}}, "data.")
    return TableColumns(**named, features=own, ranges=ranges.feature_ranges)


class SampleColumns(NamedTuple):
    """Where a table has samples, and what else is read of it.

    Attributes:
        kind: What the samples are: pictures' bytes, pictures' files, lists of numbers, or numbers.
        samples: The columns of the samples; one, unless they are numbers.
        client: The column of the samples' clients, or None.
        name: The column of their names, or None.
        own: The columns of the table that the run trained on.
    """

    kind: Literal["picture", "file", "list", "numbers"]
    samples: list[str]
    client: str | None
    name: str | None
    own: TableColumns

    @property
    def used(self) -> list[str]:
        """Every column that is read, once."""
        return list(dict.fromkeys([*self.samples, *filter(None, (self.client, self.name))]))


def sample_columns(
    path: Path, schema: Any, own: TableColumns, cells: Cells | None
) -> SampleColumns:
    """Return the columns of a table that are read.

    Args:
        path: The table, for errors.
        schema: Arrow's schema of it.
        own: The columns of the table that the run trained on.
        cells: As for `tell_left_out`.

    Raises:
        DataError: If there are no columns with samples, or columns of a wrong type or with the same
            name.
    """
    kind, samples = _kind(path, schema, own, cells)
    if kind == "numbers" and (absent := [*filterfalse(samples.count, own.ranges)]):
        raise DataError(f"{path}: it has no feature {absent[0]}, which the run had; add it.")
    name = next((n for n in _NAMES if n in schema.names), None)
    name = samples[0] if name is None and kind == "file" else name
    columns = SampleColumns(kind, samples, own.client_in(schema.names), name, own)
    _check_unique(path, schema, columns.used)
    _check_type(path, schema, columns)
    return columns


def _kind(
    path: Path, schema: Any, own: TableColumns, cells: Cells | None
) -> tuple[Literal["picture", "file", "list", "numbers"], list[str]]:
    """Return what the samples are, and their columns."""
    names = schema.names
    if own.picture is not None and own.picture in names:
        kind = schema.field(own.picture).type
        if not _is_list(kind):
            return "file" if str(_plain(kind)) in TEXT else "picture", [own.picture]
    if own.features:
        return "numbers", feature_columns(path, schema, own, cells)
    pictures = [name for name in _PICTURES if name in names]
    files = [name for name in _FILES if name in names]
    lists = [f.name for f in schema if _is_list(f.type) and is_number(f.type.value_type)]
    if pictures:
        return "picture", pictures[:1]
    if files:
        return "file", files[:1]
    if lists:
        return "list", lists[:1]
    if numbers := feature_columns(path, schema, own, cells):
        return "numbers", numbers
    raise DataError(
        f"{path}: it has the columns {', '.join(names)}; it needs image, path, a list of numbers, "
        "or columns of numbers."
    )


def feature_columns(path: Path, schema: Any, own: TableColumns, cells: Cells | None) -> list[str]:
    """Return the columns of numbers that are features: those that `own` names, or else all.

    Raises:
        DataError: If one that is named is missing, or is not of numbers; if none is named, and one
            is of numbers but for some of its cells.
    """
    if not own.features:
        found = [f.name for f in schema if is_number(f.type) and not _is_no_feature(f.name, own)]
        _check_unique(path, schema, found)
        if found:
            _check_mixed(path, schema, own, cells)
            tell_left_out(path, schema, {*found, *own.named, *_TOLD}, cells)
        return found
    _check_unique(path, schema, own.features)
    for name in own.features:
        if name not in schema.names:
            raise DataError(f"{path}: it has no column {name}, which is a feature; add it.")
        field = schema.field(name)
        if not is_number(field.type):
            raise DataError(
                f"{path}: its column {name} is of type {type_of(path, field, cells)}, and "
                "features are numbers; clean it, or leave it out of data.feature_columns."
            )
    return list(own.features)


def _check_unique(path: Path, schema: Any, names: Collection[str]) -> None:
    """Refuse columns with the same name.

    Raises:
        DataError: If one of the names is that of several columns.
    """
    counts = Counter(schema.names)
    for name in names:
        if counts[name] > 1:
            shown = printable(name)
            raise DataError(
                f"{path}: it has {counts[name]:,} columns {shown}; give each a name of its own."
            )


def _check_mixed(path: Path, schema: Any, own: TableColumns, cells: Cells | None) -> None:
    """Refuse columns of numbers and some text, which would be features without the text."""
    alone = {name for name, count in Counter(schema.names).items() if count == 1}
    texts = [field for field in schema if str(field.type) in TEXT and field.name in alone]
    likely = [field for field in texts if not _is_no_feature(field.name, own)]
    types = [(field.name, type_of(path, field, cells)) for field in likely]
    mixed = [f"{name} ({kind})" for name, kind in types if "number" in kind]
    if mixed:
        raise DataError(
            f"{path}: columns that seem to be features are not of numbers alone: {listed(mixed)}; "
            "correct such cells, or choose data.feature_columns=[…]."
        )


def _is_no_feature(name: str, own: TableColumns) -> bool:
    """Return whether a column of numbers is not a feature, such as the index of pandas."""
    return name in _NO_FEATURES or name in own.named or is_index(name)


def _check_type(path: Path, schema: Any, columns: SampleColumns) -> None:
    """Refuse files that are not text and pictures that are not bytes."""
    name = columns.samples[0]
    given = schema.field(name).type
    if columns.kind == "file":
        fits = str(_plain(given)) in TEXT
        wanted = "give the files' paths as text"
    elif columns.kind == "picture":
        inside = pa.types.is_struct(given) and given.get_field_index("bytes") >= 0
        kind = _plain(given.field("bytes").type if inside else given)
        fits = str(kind) in _BYTES or pa.types.is_fixed_size_binary(kind)
        wanted = "give pictures' bytes, a struct with a field bytes, or name a column of paths path"
    else:
        return
    if not fits:
        raise DataError(f"{path}: {name} is of type {given}; {wanted}.")


def _plain(kind: Any) -> Any:
    """Return the value type of a dictionary-encoded column, or else the type itself."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def is_number(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds numbers; booleans are none."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))
