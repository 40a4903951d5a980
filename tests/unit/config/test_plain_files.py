"""Stored YAML and JSON of strangers: plain values or one sentence, in little time and memory."""

import os
import subprocess
import sys
import time

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.config import plain_files
from coterie.config.plain_files import YAML_BYTES, read_json, read_yaml
from coterie.config.stored import read_stored_config
from coterie.errors import ConfigError

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))
BOMBS = {
    "aliases": LAUGHS,
    "merged": "a: &a {x: 1}\nb: {<<: *a}\n",
    "itself": "a: &a [*a]\n",
    "tag": "a: !!python/object/apply:os.system [touch executed]\n",
    "binary": "a: !!binary aGVsbG8=\n",
    "own tag": "a: !mine 1\n",
    "deep list": "[" * 100_000,
    "deep mapping": "{a: " * 100_000,
    "deep dashes": "- " * 100_000,
    "long number": "a: " + "1" * 400_000,
    "long hexadecimal": "a: 0x" + "f" * 400_000,
    "sexagesimal": "a: 1" + ":59" * 100_000,
    "large": "a: " + "x" * YAML_BYTES,
    "date": "a: 2001-01-01\n",
    "no date": "a: 2001-99-99\n",
    "infinite": "a: .inf\n",
    "key": "1: a\n",
    "key of a list": "? [a]\n: b\n",
    "key twice": "a: 1\nb: {c: 1, 'c': 2}\n",
    "not UTF-8": b"a: \xff\xfe\n",
    "UTF-16": "a: 1".encode("utf-16"),
    "zero byte": "a: \0\n",
}


@pytest.mark.parametrize("name", BOMBS)
def test_yaml_that_grows_or_runs_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "config.yaml"
    content = BOMBS[name]
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    started = time.process_time()
    with pytest.raises(ConfigError, match=r"it is not plain YAML \(.*\); restore it") as caught:
        read_stored_config(path)
    assert time.process_time() - started < 2
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "executed").exists()


def test_the_largest_yaml_takes_little_time(tmp_path):
    """In a process of its own, without the checks and the heap of the tests."""
    (tmp_path / "config.yaml").write_text("a: [" + "1," * (YAML_BYTES // 2 - 10) + "1]")
    code = (
        "import pathlib, time; from coterie.config.plain_files import read_yaml;"
        "started = time.process_time(); read = read_yaml(pathlib.Path('config.yaml'));"
        "print(len(read['a']), time.process_time() - started)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True
    )
    length, seconds = ran.stdout.split()
    assert int(length) == YAML_BYTES // 2 - 9
    assert float(seconds) < 4


TEXT = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" "))
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TEXT, PLAIN, max_size=4))
def test_what_a_run_writes_is_read_back(tmp_path_factory, values):
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(yaml.safe_dump(values, allow_unicode=True), encoding="utf-8")
    assert read_yaml(path) == values


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_values_or_a_value_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    for read in (read_yaml, read_json):
        try:
            read(path)
        except ValueError:
            continue


def test_what_is_no_regular_file_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="not a regular file"):
        read_yaml(tmp_path / "pipe")
    (tmp_path / "endless").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="not a regular file"):
        read_json(tmp_path / "endless")


def test_json_of_very_many_values_is_refused_before_it_is_parsed(tmp_path, monkeypatch):
    monkeypatch.setattr(plain_files, "_MOST_VALUES", 100)
    path = tmp_path / "x.json"
    for inside in ("{}", "[]", "1"):
        path.write_text(f"[{','.join([inside] * 101)}]")
        with pytest.raises(ValueError, match="more than 100 values"):
            read_json(path)
    path.write_text(f"[{','.join(['1'] * 100)}]")
    assert len(read_json(path)) == 100


def test_deep_json_is_refused(tmp_path):
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deep"):
        read_json(tmp_path / "deep")
    (tmp_path / "large").write_text("[" + "1," * 1000 + "1]")
    with pytest.raises(ValueError, match="larger than 1 KiB"):
        read_json(tmp_path / "large", 1024)
