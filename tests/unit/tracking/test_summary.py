"""summary.json, and the tables and texts of the final output."""

import io
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from coterie.tracking.formatting import (
    display_path,
    fit,
    format_bytes,
    format_seconds,
    score_texts,
    scores_table,
    shorten,
)
from coterie.tracking.summary import Summary


def summary(**changes):
    details = {"method": "FedMCC", "dataset": "digits", "rounds": 12, "clients": 5, "seed": 1}
    details |= {"commit": "0123abcd", "device": "2 cores", "bytes": {"up": 0}}
    return Summary(**{"status": "completed", **details, **changes})


def test_the_file_is_the_contract(tmp_path):
    summary(
        metrics={"clustering": {"acc": 0.9, "nmi": math.nan}, "linear": {"acc": 0.8}},
        bytes={"down": 1, "up": 2, "peer": 3, "evaluation": 0},
        failures=("client 3 was dropped.",),
        seconds={"total": 4.5},
    ).write(tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text()) == {
        "status": "completed",
        "method": "FedMCC",
        "dataset": "digits",
        "rounds": 12,
        "clients": 5,
        "seed": 1,
        "commit": "0123abcd",
        "device": "2 cores",
        "metrics": {"clustering": {"acc": 0.9, "nmi": None}, "linear": {"acc": 0.8}},
        "bytes": {"down": 1, "up": 2, "peer": 3, "evaluation": 0},
        "failures": ["client 3 was dropped."],
        "seconds": {"total": 4.5},
    }
    assert [path.name for path in tmp_path.iterdir()] == ["summary.json"]


def test_what_privacy_cost_has_numbers_and_a_unit(tmp_path):
    found = summary(privacy={"epsilon": math.inf, "delta": 1e-5, "unit": "sample"})
    found.write(tmp_path / "summary.json")
    written = json.loads((tmp_path / "summary.json").read_text())["privacy"]
    assert written == {"epsilon": None, "delta": 1e-5, "unit": "sample"}
    assert found.numbers()["total/privacy/delta"] == 1e-5
    assert "total/privacy/unit" not in found.numbers()


def test_an_error_belongs_to_a_failed_run_and_to_no_other():
    assert summary(status="failed", error="No actors left.").as_dict()["error"] == "No actors left."
    assert "error" not in summary(status="interrupted").as_dict()
    with pytest.raises(ValueError, match="status='failed'"):
        summary(status="failed")
    with pytest.raises(ValueError, match="status='interrupted'"):
        summary(status="interrupted", error="x")


ROWS = {
    "FedMCC": {"ACC": 0.91249, "NMI": 0.8, "ARI": 0.7, "Kappa": math.nan},
    "k-means on pixels": {"ACC": 0.5, "NMI": 0.81, "ARI": 0.7000001, "Kappa": -0.25},
    "a baseline whose name is much too long for its column [bold]": {"ACC": 0.1},
}


def rendered(table, *, terminal, width=80):
    file = io.StringIO()
    options = {"force_terminal": True, "color_system": "standard"} if terminal else {}
    Console(file=file, width=width, legacy_windows=False, **options).print(table)
    return file.getvalue()


def test_scores_have_three_decimals_and_fit_eighty_columns(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    lines = rendered(scores_table(ROWS, 80), terminal=False).splitlines()
    assert max(map(len, lines)) <= 80
    cells = [line.split() for line in lines if line.strip()]
    assert cells[0] == ["ACC", "NMI", "ARI", "Kappa"]
    assert cells[2] == ["FedMCC", "0.912", "0.800", "0.700", "-"]
    assert cells[3] == ["k-means", "on", "pixels", "0.500", "0.810", "0.700", "-0.250"]
    assert cells[4][-4:] == ["0.100", "-", "-", "-"]


def test_a_narrow_terminal_breaks_names_and_cuts_no_number():
    lines = rendered(scores_table(ROWS, 50), terminal=False, width=50).splitlines()
    assert max(map(len, lines)) <= 50
    words = " ".join(lines).split()
    for number in ("0.912", "0.800", "0.700", "0.500", "0.810", "-0.250", "0.100"):
        assert number in words
    assert "[bold]" in words


@pytest.mark.parametrize("width", [20, 30, 40])
def test_a_terminal_too_narrow_for_the_columns_has_a_line_for_each_score(width):
    lines = rendered(scores_table(ROWS, width), terminal=False, width=width).splitlines()
    assert max(map(len, lines)) <= width
    assert [line.split() for line in lines[:4]] == [
        ["FedMCC"],
        ["ACC", "0.912"],
        ["NMI", "0.800"],
        ["ARI", "0.700"],
    ]


def test_the_best_of_each_column_is_bold_ties_too(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    text = rendered(scores_table(ROWS, 80), terminal=True)
    first, second, third = (
        next(line for line in text.splitlines() if name in line)
        for name in ("FedMCC", "k-means", "a baseline")
    )
    assert [f"\x1b[1m{cell}" in first for cell in ("0.912", "0.800", "0.700", "-")] == [
        True,
        False,
        True,
        False,
    ]
    assert [f"\x1b[1m{cell}" in second for cell in ("0.500", "0.810", "0.700", "-0.250")] == [
        False,
        True,
        True,
        True,
    ]
    assert "\x1b[1m" not in third


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (9_996, "10.0 kB"),
        (999_499, "999 kB"),
        (999_501, "1.00 MB"),
        (1_234_567, "1.23 MB"),
        (45.6e9, "45.6 GB"),
        (5e15, "5000 TB"),
    ],
)
def test_sizes(count, text):
    assert format_bytes(count) == text


@given(st.integers(1, 10**15))
def test_sizes_are_right_to_half_a_percent(count):
    number, unit = format_bytes(count).split()
    factor = 1000 ** ["B", "kB", "MB", "GB", "TB"].index(unit)
    assert float(number) * factor == pytest.approx(count, rel=5.1e-3)
    assert len(number) <= 4


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (4.21, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00"),
        (60, "1:00"),
        (187.4, "3:07"),
        (3599.6, "1:00:00"),
        (7387, "2:03:07"),
        (100 * 3600, "100:00:00"),
    ],
)
def test_durations(seconds, text):
    assert format_seconds(seconds) == text


def test_paths_inside_the_current_folder_are_relative(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert display_path(tmp_path / "runs" / "a.png") == "runs/a.png"
    assert display_path(tmp_path.parent / "a.png") == str(tmp_path.parent / "a.png")


def test_a_line_keeps_the_first_parts_and_what_still_fits():
    assert fit(["abc", "de", "longer than that", "f"], 10) == "abc  de  f"
    assert fit(["abc", "de"], 6) == "abc"
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefg", 6) == "abc..."
    assert score_texts({"clustering/acc": 0.91249, "nmi": math.nan}) == ["acc 0.912", "nmi -"]
    both = score_texts({"acc": 0.5, "linear/acc": 0.96, "linear/f1_macro": 0.95})
    assert both == ["acc 0.500", "linear acc 0.960", "f1_macro 0.950"]
    assert score_texts({"val/loss": 1.5, "val/acc": 0.5}) == ["val loss 1.500", "acc 0.500"]
