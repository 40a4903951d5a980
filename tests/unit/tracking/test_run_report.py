"""`report.html` of directories as runs leave them, whole or not."""

import csv
import json
import os
import re

import pytest

from coterie.commands.compose import compose
from coterie.config.loading import dump_config
from coterie.errors import DataError
from coterie.tracking.run_directory import RunDirectory
from coterie.tracking.run_report import write_run_report
from coterie.tracking.summary import Summary
from tests.builders.browser import CHROMIUM, pictures_of, shown

LONG = "a" * 400
CONFIG = compose("experiment=fedmcc_digits").model_copy(update={"experiment": f"<b>{LONG}</b>"})


@pytest.fixture
def directory(tmp_path):
    return RunDirectory(tmp_path)


def summary(**values):
    base = {"status": "completed", "method": "M", "dataset": "d", "rounds": 2, "clients": 3}
    base |= {"commit": "0123abcd", "device": "2 cores", "bytes": {"up": 0}}
    return Summary(**{**base, "seed": 0, "seconds": {"total": 1.0}, **values})


def write_client_rows(path, count):
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["client", "samples", "tasks", "failures", "loss", "seconds", "bytes_up"])
        for k in range(count):
            table.writerow([k, 10, 1, int(k == 1234), "" if k == 7 else k, 0.5, 1000])


def test_a_directory_without_an_end_has_a_page_that_says_so(directory):
    text = write_run_report(directory, CONFIG).read_text()
    assert "it has not ended, or it was killed" in text
    assert "evaluation.figures=true draws them" in text


def test_names_are_text_and_no_markup(directory):
    text = write_run_report(directory, CONFIG).read_text()
    assert "<b>aaa" not in text
    assert "&lt;b&gt;aaa" in text


def test_a_failed_run_says_why_and_lists_some_failures(directory):
    failures = tuple(f"failure {k}" for k in range(100))
    summary(status="failed", error="It broke.", failures=failures).write(directory.summary)
    text = write_run_report(directory, CONFIG).read_text()
    assert "It broke." in text
    assert "failure 29" in text
    assert "failure 30" not in text
    assert "30 of 100 failures; summary.json has all of them." in text


def test_of_thousands_of_clients_it_has_those_worth_looking_at(directory):
    write_client_rows(directory.clients, 5000)
    text = write_run_report(directory, CONFIG).read_text()
    assert "30 of 5,000 clients" in text
    assert "<th>1234</th>" in text  # it failed
    assert "<th>4999</th>" in text  # has the largest loss
    assert "<th>0</th>" not in text
    assert len(text) < 60_000


def test_the_foot_says_which_code_ran_on_what(directory):
    directory.write_config(dump_config(CONFIG))
    summary().write(directory.summary)
    foot = write_run_report(directory, CONFIG).read_text().partition("<footer>")[2]
    assert re.match(r"Coterie \S+ \(0123abcd\), Python 3\.[^;]*; 2 cores</footer>", foot)
    directory.summary.unlink()
    foot = write_run_report(directory, CONFIG).read_text().partition("<footer>")[2]
    assert re.match(r"Coterie [^ (]+, Python 3\.[^;]*</footer>", foot)


def test_samples_that_were_left_out_are_listed(directory):
    lines = [f"{k}.png,not a picture" for k in range(40)]
    (directory.path / "skipped.csv").write_text("\n".join(["file,reason", *lines]) + "\n")
    text = write_run_report(directory, CONFIG).read_text()
    assert "<th>29.png</th><td>not a picture</td>" in text
    assert "30.png" not in text
    assert "30 of 40 samples; skipped.csv has all of them." in text


def test_numbers_that_are_not_finite_are_dashes(directory):
    metrics = {"clustering": {"acc": float("nan"), "nmi": 0.5}, "linear": {"acc": 0.25}}
    summary(metrics=metrics).write(directory.summary)
    text = write_run_report(directory, CONFIG).read_text()
    assert "<td>–</td><td>0.500</td>" in text
    assert "linear probe" in text


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_long_names_do_not_stick_out(directory, tmp_path):
    write_client_rows(directory.clients, 40)
    metrics = {"clustering": {f"metric_{k}": 0.5 for k in range(30)} | {"nmi": 1.0}}
    summary(metrics=metrics, failures=(LONG,), method=LONG).write(directory.summary)
    page = write_run_report(directory, CONFIG)
    assert pictures_of(page) == []
    found = shown(page, 400, tmp_path)
    assert found["content"] <= found["width"] == 400
    assert found["out"] == []


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "clients.csv", "figures/a.png"])
def test_files_of_no_run_are_refused_and_not_read_whole(directory, name):
    path = directory.path / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, 1 << 40)
    with pytest.raises(DataError, match=r"is damaged \(|a line has more than 16 MiB"):
        write_run_report(directory, CONFIG)
    assert not directory.report.exists()


RAW = r"object|attribute|subscriptable|operand|iterable|Error"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("bytes",), -1),
        (("bytes", "up"), "7"),
        (("failures",), 2**70),
        (("metrics", "clustering"), "much"),
        (("metrics", "clustering", "acc"), [1]),
        (("rounds",), None),
        (("seconds", "total"), {}),
        ((), [1]),
    ],
)
def test_a_summary_that_no_run_writes_is_refused_by_place(directory, place, value):
    whole = {**summary(metrics={"clustering": {"acc": 0.5}}).as_dict(), "seconds": {"total": 1.0}}
    inner = whole
    for key in place[:-1]:
        inner = inner[key]
    if place:
        inner[place[-1]] = value
    directory.summary.write_text(json.dumps(whole if place else value))
    with pytest.raises(DataError) as caught:
        write_run_report(directory, CONFIG)
    told = str(caught.value)
    assert told.startswith(f"{directory.summary}: it is damaged ({'.'.join(place)}")
    assert told.endswith("; restore it, or delete it and resume the run, which writes it again.")
    assert not re.search(RAW, told)


@pytest.mark.parametrize("name", ["assignments.parquet", "clients.csv", "config.yaml"])
def test_a_damaged_file_is_named(directory, name):
    (directory.path / name).write_bytes(b"\xff[1, 2\n")
    with pytest.raises(DataError) as caught:
        write_run_report(directory, CONFIG)
    assert str(caught.value).startswith(f"{directory.path / name}: it is damaged (")
