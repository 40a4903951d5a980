"""Footers of parquet whose statistics of sizes would end the process are refused, others read."""

import io
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coterie.config.parquet_footer import check_size_statistics
from coterie.config.parquet_growth import ParquetTable

NESTED = pa.table(
    {
        "number": pa.array([1.0, None, 3.0]),
        "text": ["a", None, "ccc"],
        "list": [[1, 2], [], None],
        "lists": [[[1.0], [2.0, 3.0]], [], [[]]],
        "struct": [{"x": 1, "y": ["a"]}, None, {"x": 2, "y": []}],
        "bool": [True, False, None],
        "when": pa.array(np.array(["2024-01-01"] * 3, "datetime64[ms]")),
        "dictionary": pa.array(["u", "v", "u"]).dictionary_encode(),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    }
)


def written(table, **options):
    content = io.BytesIO()
    pq.write_table(table, content, **options)
    return content.getvalue()


def check(content):
    source = pa.BufferReader(content)
    check_size_statistics(source, len(content), pq.ParquetFile(source).schema)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 1},
        {"version": "1.0"},
        {"data_page_version": "2.0", "write_page_index": True},
        {"compression": "zstd", "write_statistics": False, "store_schema": False},
        {"write_page_checksum": True, "use_dictionary": False},
    ],
)
def test_files_of_every_type_are_read(tmp_path, options):
    content = written(NESTED, **options)
    check(content)
    (tmp_path / "x.parquet").write_bytes(content)
    found = ParquetTable(tmp_path / "x.parquet", len(content))
    assert found.read(["number"]).equals(NESTED.select(["number"]))


def test_tables_without_rows_or_with_many_columns_are_read():
    check(written(NESTED.slice(0, 0)))
    check(written(pa.table({f"c{n}": [1.0] for n in range(300)})))


LISTED = written(pa.table({"a": [[1.0, 2.0], [3.0]]}), use_dictionary=False)


def damaged(content):
    """The files in which one byte of the footer is another small number."""
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for place in range(start, len(content) - 8):
        for value in (1, 2, 3, 5, 8, 0x16, 0x29, 0x36, 0x49):
            yield content[:place] + bytes([value]) + content[place + 1 :]


def test_what_passes_never_ends_the_process(tmp_path):
    files, refused = [], set()
    for number, content in enumerate(damaged(LISTED)):
        try:
            check(content)
        except ValueError as error:
            refused.add(str(error))
        except (OSError, pa.ArrowException):
            continue
        else:
            files.append(tmp_path / f"{number}.parquet")
            files[-1].write_bytes(content)
    assert {"its statistics of a.list.element do not fit its schema"} <= refused
    assert len(files) > 100
    code = (
        "import sys, pyarrow.parquet as pq\n"
        "for path in sys.stdin.read().split():\n"
        "    known = pq.ParquetFile(path).metadata\n"
        "    for group in range(known.num_row_groups):\n"
        "        for column in range(known.num_columns):\n"
        "            known.row_group(group).column(column)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input="\n".join(map(str, files)), text=True, check=False
    )
    assert done.returncode == 0
