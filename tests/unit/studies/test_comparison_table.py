"""The table of a comparison: numbers, Markdown, CSV, and what stands in it of runs that failed."""

import csv
import io
import statistics

import pytest
from rich.console import Console

from coterie.studies.comparison_table import ComparisonTable, Spread, cell_text, foremost
from coterie.studies.study_view import StudyView, terminal_table
from coterie.tracking.run_records import RunRecord


def record(label, seed, status="completed", error="", **numbers):
    numbers = {name.replace("__", "/"): value for name, value in numbers.items()}
    used = tuple(name for name in numbers if name.startswith("bytes"))
    return RunRecord(
        label=label,
        seed=seed,
        status=status,
        error=error,
        numbers=numbers,
        accounts=used,
        scores=tuple(name for name in numbers if name not in used),
    )


ACC = (0.9, 0.7, 0.8)
RECORDS = [
    *(record("a", s, clustering__acc=v, bytes__up=1000 * (s + 1)) for s, v in enumerate(ACC)),
    record("b|c", 0, clustering__acc=1 / 3, linear__acc=0.5, bytes__up=5),
    record("b|c", 1, "failed", "cannot read; make room."),
    record("b|c", 2, "not started"),
]


def test_mean_and_sample_deviation_over_the_completed_runs():
    comparison = ComparisonTable.of(RECORDS)
    assert comparison.columns == ("clustering/acc", "linear/acc", "bytes/up")
    one, two = comparison.rows
    assert one.cells[0] == Spread(pytest.approx(0.8), pytest.approx(0.1), 3)
    assert one.cells[0].deviation == statistics.stdev(ACC)
    assert one.cells[1:] == (None, Spread(2000.0, 1000.0, 3))
    assert two.cells == (Spread(1 / 3, None, 1), Spread(0.5, None, 1), Spread(5.0, None, 1))
    assert [(row.completed, row.runs, row.count) for row in comparison.rows] == [
        (3, 3, "3"),
        (1, 3, "1 of 3"),
    ]


def test_markdown_is_a_table_and_the_runs_that_are_missing_in_it():
    assert ComparisonTable.of(RECORDS).markdown() == (
        "| experiment | runs | clustering/acc | linear/acc | bytes/up |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| a | 3 | 0.800 ± 0.100 | – | 2.00 kB ± 1.00 kB |\n"
        "| b\\|c | 1 of 3 | 0.333 | 0.500 | 5 B |\n"
        "\n"
        "- b|c, seed 1: failed: cannot read; make room.\n"
        "- b|c, seed 2: not started.\n"
    )
    assert ComparisonTable.of(RECORDS[:3]).markdown().count("\n") == 3


def test_an_error_is_text_in_markdown_and_in_a_spreadsheet():
    error = "\x1b[2J ![x](http://a/b.png)\n# <img src=x> `c`\n\\"
    comparison = ComparisonTable.of([record("<b>=1", 0, "failed", error), record("=1", 0, x=-1.0)])
    lines = comparison.markdown().splitlines()
    assert lines[2].startswith("| &lt;b&gt;=1 | 0 of 1 |")
    assert lines[-1] == (
        "- &lt;b&gt;=1, seed 0: failed: ?\\[2J !\\[x\\](http://a/b.png) "
        "# &lt;img src=x&gt; \\`c\\` \\\\"
    )
    runs = list(csv.DictReader(io.StringIO(comparison.runs_csv())))
    assert [(run["experiment"], run["x"]) for run in runs] == [("<b>=1", ""), ("'=1", "-1.0")]


def test_csv_reads_back_to_the_same_numbers():
    comparison = ComparisonTable.of(RECORDS)
    rows = list(csv.DictReader(io.StringIO(comparison.csv())))
    assert float(rows[0]["clustering/acc mean"]) == comparison.rows[0].cells[0].mean
    assert float(rows[0]["clustering/acc std"]) == comparison.rows[0].cells[0].deviation
    assert (rows[0]["linear/acc mean"], rows[1]["clustering/acc std"]) == ("", "")
    assert (rows[1]["experiment"], rows[1]["completed"], rows[1]["runs"]) == ("b|c", "1", "3")
    runs = list(csv.DictReader(io.StringIO(comparison.runs_csv())))
    assert [float(run["clustering/acc"]) for run in runs[:4]] == [*ACC, 1 / 3]
    assert [run["status"] for run in runs] == ["completed"] * 4 + ["failed", "not started"]
    assert runs[4]["error"] == "cannot read; make room."


def test_a_number_that_some_completed_runs_lack_says_how_many_have_it():
    records = [record("a", 0, x=9.0, y=0.5), record("a", 1, y=0.25), record("a", 2, y=0.75)]
    comparison = ComparisonTable.of(records, ["x", "y"])
    assert comparison.texts(comparison.rows[0]) == ["9.000 (1 of 3)", "0.500 ± 0.250"]
    (row,) = csv.DictReader(io.StringIO(comparison.csv()))
    assert (row["x runs"], row["y runs"]) == ("1", "3")


def test_columns_can_be_chosen():
    chosen = ComparisonTable.of(RECORDS, ["bytes/up", "nothing"])
    assert chosen.columns == ("bytes/up", "nothing")
    assert chosen.rows[0].cells == (Spread(2000.0, 1000.0, 3), None)


def test_equal_bytes_have_no_deviation_to_show_and_large_numbers_no_decimals():
    assert cell_text("bytes/up", Spread(2e6, 0.0, 3)) == "2.00 MB"
    assert cell_text("clustering/acc", Spread(0.5, 0.0, 3)) == "0.500 ± 0.000"
    assert cell_text("seconds/total", Spread(12345.678, 10.0, 3)) == "12346 ± 10.000"


def test_the_terminal_takes_the_first_of_each_group_and_80_columns():
    both = {"clustering__acc": 0.5, "clustering__nmi": 0.5, "bytes__up": 9}
    records = [record("a", 0, **both, knn__acc=0.1), record("b", 0, **both)]
    wanted = ["clustering/acc", "knn/acc", "clustering/nmi"]
    assert foremost(ComparisonTable.of(records)) == wanted
    records = [record("a", 0, **both, knn__acc=0.1), record("b", 0, **both, knn__acc=0.2)]
    assert foremost(ComparisonTable.of(records)) == ["clustering/acc", "knn/acc", "clustering/nmi"]
    alone = record("c", 0, train__acc=0.9, bytes__up=9)
    assert foremost(ComparisonTable.of([*records, alone]))[:2] == ["clustering/acc", "train/acc"]
    numbers = {f"g{i}__m{j}": 0.5 for i in range(6) for j in range(4)}
    label = "a label that is much too long to stand in a terminal"
    comparison = ComparisonTable.of([record(label, seed, **numbers) for seed in (0, 1)])
    console = Console(file=io.StringIO(), width=80)
    console.print(terminal_table(comparison))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split() == ["g0", "g1"]
    (numbers_of_it,) = [line.split() for line in lines if "±" in line]
    assert numbers_of_it[-7:] == ["2", "0.500", "±", "0.000", "0.500", "±", "0.000"]
    assert [word for line in lines[3:] for word in line.split() if word in label.split()][:2] == [
        "a",
        "label",
    ]
    assert "terminal" in console.file.getvalue()  # the label is broken, and not cut


def test_the_view_says_how_each_run_ended_and_draws_no_line_over_80_columns():
    now = [0.0]
    console = Console(file=io.StringIO(), width=200)
    view = StudyView("lines", console, clock=lambda: now[0])
    view.begin(4, 3)
    view.started("a seed 0")
    now[0] = 30.0
    view.ended("a seed 0", RECORDS[0], 30.0)
    view.ended("b|c seed 1", RECORDS[4], 2.0)
    shown = console.file.getvalue().splitlines()
    assert shown == [
        "4 runs, 1 of them completed before",
        "started a seed 0",
        "[2/4] a seed 0: completed after 30.0 s",
        "[3/4] b|c seed 1: failed after 2.0 s",
        "    cannot read; make room.",
    ]
    progress = {"a label of " + 60 * "x": "round 3/68 representation  loss 3.1  clients 5/5  ETA 9"}
    drawn = [text.plain for text in view.panel(progress, 2).renderables]
    assert drawn[0] == "1 running, 2 waiting  ETA 15.0 s"
    now[0] = 34.0
    assert view.panel({}, 0).renderables[0].plain == "0 running, 0 waiting  ETA 11.0 s"
    assert max(map(len, drawn)) <= 80
    assert "round 3/68" in drawn[1]


def test_runs_are_counted_anew_for_each_part_of_a_study():
    console = Console(file=io.StringIO(), width=200)
    view = StudyView("lines", console)
    for _ in range(2):
        view.begin(1, 1)
        view.ended("a seed 0", RECORDS[0], 1.0)
    assert console.file.getvalue().count("[1/1] a seed 0") == 2
