"""metrics.jsonl: strict JSON, a line at a time, cut back on resume."""

import json
import logging
import math
import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.config.record_names import RESERVED
from coterie.errors import ContractError, DataError
from coterie.tracking.metrics_log import MetricsLog, MetricsRow, read_rows


def row(**values):
    return MetricsRow(round=2, stage="cluster", phase="local training", step=1, values=values)


def strict(line):
    def refuse(constant):
        raise ValueError(constant)

    return json.loads(line, parse_constant=refuse)


def test_a_server_line_and_a_client_line(tmp_path):
    log = MetricsLog(tmp_path / "new" / "metrics.jsonl")
    log.append(row(loss=0.5, steps=3))
    log.append(MetricsRow(round=3, stage="s", phase="p", step=0, values={"loss": 1.5}, client=0))
    server, client = map(strict, log.path.read_text().splitlines())
    assert server == {
        "round": 2,
        "stage": "cluster",
        "phase": "local training",
        "step": 1,
        "scope": "server",
        "loss": 0.5,
        "steps": 3,
    }
    assert client == {
        "round": 3,
        "stage": "s",
        "phase": "p",
        "step": 0,
        "scope": "client",
        "client": 0,
        "loss": 1.5,
    }


def test_what_is_not_finite_is_null_with_its_key(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(row(a=math.nan, b=math.inf, c=-math.inf, d=np.float32("nan"), e=np.float32(0.25)))
    line = strict(log.path.read_text())
    assert {name: line[name] for name in "abcde"} == dict.fromkeys("abcd") | {"e": 0.25}


names = st.text(min_size=1).filter(lambda name: name not in RESERVED)


@given(st.dictionaries(names, st.floats() | st.integers(-(2**60), 2**60)))
def test_every_finite_value_comes_back_exactly(values):
    line = strict(replace(row(), values=values).to_json())
    for name, value in values.items():
        assert line[name] == (value if math.isfinite(value) else None)
    assert "\n" not in row().to_json()


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_is_refused_before_anything_is_written(tmp_path, name):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ContractError, match=f"metric '{name}'"):
        log.append(row(**{name: 1.0}))
    assert log.offset == 0


def test_each_line_is_in_the_file_at_once(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for count in range(1, 4):
        log.append(row(loss=count))
        text = log.path.read_text()
        assert text.count("\n") == count
        assert log.offset == len(text.encode())


@settings(max_examples=30)
@given(before=st.integers(0, 5), after=st.integers(0, 5), again=st.integers(0, 5))
def test_resuming_equals_never_having_stopped(tmp_path_factory, before, after, again):
    path = tmp_path_factory.mktemp("log") / "metrics.jsonl"
    log = MetricsLog(path)
    for i in range(before):
        log.append(row(i=i))
    offset = log.offset
    for i in range(after):
        log.append(row(i=-1 - i))
    log.close()
    with path.open("ab") as file:
        file.write(b'{"round": 2, "sta')  # killed while it wrote
    log = MetricsLog(path)
    log.truncate_to(offset)
    for i in range(before, before + again):
        log.append(row(i=i))
    assert log.offset == path.stat().st_size
    log.close()
    written = [strict(line)["i"] for line in path.read_text().splitlines()]
    assert written == list(range(before + again))


def test_a_file_shorter_than_the_checkpoint_knows_is_kept_with_a_warning(tmp_path, caplog):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(row(loss=1.0))
    size = log.offset
    with caplog.at_level(logging.WARNING):
        log.truncate_to(size + 10)
    assert log.offset == size
    assert f"holds {size} bytes, the checkpoint expects {size + 10}" in caplog.text
    with pytest.raises(ValueError, match="offset=-1"):
        log.truncate_to(-1)


def test_only_a_line_feed_ends_a_row(tmp_path):
    path = tmp_path / "metrics.jsonl"
    texts = ["a\u2028b", "a\x85b", "a\x0bb"]
    path.write_text("".join(json.dumps({"note": t}, ensure_ascii=False) + "\n" for t in texts))
    assert [row["note"] for row in read_rows(path)] == texts
    path.write_text("[" * 100_000 + "\n" + '{"note": "x"}\n')
    assert read_rows(path) == [{"note": "x"}]
    assert read_rows(tmp_path / "none.jsonl") == []


def test_rows_after_half_a_line_are_whole(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for i in range(3):
        log.append(row(i=i))
    offset = log.offset
    log.close()
    os.truncate(log.path, offset - 20)  # as a power cut leaves it
    log = MetricsLog(log.path)
    log.truncate_to(offset)
    for i in (3, 4):
        log.append(row(i=i))
    log.close()
    assert [strict(line)["i"] for line in log.path.read_text().splitlines()] == [0, 1, 3, 4]


def test_rows_wait_with_one_warning_while_the_disk_is_full(tmp_path, caplog):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append(row(loss=1.0))
    file = log.file
    with open("/dev/full", "ab", buffering=0) as device:  # noqa: PTH123
        log.file = device
        log.append(row(loss=2.0))
        log.append(row(loss=3.0))
    assert len(log.rows()) == 1
    (record,) = caplog.records
    assert "cannot write (No space left on device): the run goes on" in record.getMessage()
    log.file = file
    before = file.tell()
    assert log.offset > before
    log.append(row(loss=4.0))
    assert [found["loss"] for found in log.rows()] == [1.0, 2.0, 3.0, 4.0]
    assert log.offset == (tmp_path / "metrics.jsonl").stat().st_size
    log.file = open("/dev/full", "ab", buffering=0)  # noqa: PTH123, SIM115
    log.append(row(loss=5.0))
    log.close()
    assert "its last 1 rows could not be written" in caplog.records[-1].getMessage()
    file.close()


def test_a_line_without_an_end_is_refused_and_not_read_whole(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"scope": "server"}\n{"scope": "client"}\n')
    assert read_rows(path, "server") == [{"scope": "server"}]
    os.truncate(path, 1 << 26)
    for refused in (lambda: read_rows(path), lambda: MetricsLog(path).truncate_to(1 << 31)):
        with pytest.raises(DataError, match=r"metrics\.jsonl: a line has more than 16 MiB"):
            refused()
