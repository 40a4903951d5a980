"""Numbers over seeds: those that only some seeds have are no mean, and give no sign."""

from dataclasses import replace

import pytest

from coterie.studies.measurement import Measurement
from coterie.studies.paper_study import Cell, read_study
from coterie.studies.results_file import Result
from coterie.studies.results_pages import _measured, _table, _tally

STUDY = read_study("cfcl_6")
METRIC, NAME = next((title, name) for title, name in STUDY.metrics.items() if "until" in name)
COLUMN = next(iter(STUDY.columns))


def measured(reached: dict[str, list[float | None]]) -> Measurement:
    results = [
        Result(Cell(row, COLUMN), seed, {} if at is None else {NAME: at}, "a", "d", "c")
        for row, places in reached.items()
        for seed, at in enumerate(places)
    ]
    return Measurement("cfcl_6", STUDY, "cpu", tuple(results))


def test_all_seeds_that_reach_a_score_have_a_mean() -> None:
    part = measured({"explicit": [1e6, 3e6]})
    found = part.number(METRIC, Cell("explicit", COLUMN))
    assert found is not None
    assert (found.spread.mean, found.seeds) == (2e6, 2)


def test_one_seed_of_three_is_no_mean_and_is_told() -> None:
    part = measured({"explicit": [1e6, None, None], "implicit": [5e6, 5e6, 5e6]})
    assert part.number(METRIC, Cell("explicit", COLUMN)) is None
    assert part.sign(METRIC, Cell("implicit", COLUMN)) == "–"
    assert "1 of 3 seeds" in _table(part)


def test_a_score_that_no_seed_reaches_is_a_dash() -> None:
    part = measured({"explicit": [None, None]})
    assert part.number(METRIC, Cell("explicit", COLUMN)) is None
    assert " of 2 seeds" not in _table(part)


def test_a_row_that_is_a_mean_is_one_over_its_rows() -> None:
    study = STUDY.model_copy(update={"each": {"explicit": {"a": "", "b": ""}}})
    part = replace(measured({"explicit, a": [1.0, 3.0], "explicit, b": [5.0, 7.0]}), study=study)
    found = part.number(METRIC, Cell("explicit", COLUMN))
    assert found is not None
    assert (found.spread.mean, found.seeds) == (4.0, 2)
    assert "| explicit | 2 | 4.000 ± 2.582 |" in _table(part)
    some = replace(measured({"explicit, a": [1.0]}), study=study)
    assert some.number(METRIC, Cell("explicit", COLUMN)) is None


def test_a_correlation_is_over_all_runs_that_have_both_metrics() -> None:
    study = read_study("orchestra_fig4")
    cells = [Cell(row, next(iter(study.columns))) for row in study.rows][:4]
    given = [(0.1, 0.5), (0.2, 0.7), (0.3, 0.6), (0.9, None)]
    results = [
        Result(
            cell, 0, {"unsupervised/selection": x} | ({} if y is None else {"knn/acc": y}), *"adc"
        )
        for cell, (x, y) in zip(cells, given, strict=True)
    ]
    part = Measurement("orchestra_fig4", study, "cpu", tuple(results))
    assert part.correlation() == (pytest.approx(0.5), 3)
    assert replace(part, results=tuple(results[:2])).correlation() is None
    assert measured({"explicit": [1.0] * 3}).correlation() is None


def test_the_command_names_the_seeds_where_they_are_not_the_scales() -> None:
    command = "coterie study study=cfcl_6 scale=cpu"
    assert measured({"explicit": [1.0]}).command == command
    assert measured({"explicit": [1.0, 2.0, 3.0]}).command == f"{command} seeds=[0,1,2]"
    five = read_study("cpcfl_11")
    assert len(five.scales["cpu"].seeds) == 5
    one = Result(Cell("IFCA", "STL-10"), 0, {}, "a", "d", "c")
    assert Measurement("cpcfl_11", five, "cpu", (one,)).command.endswith("scale=cpu seeds=[0]")
    assert Measurement("cpcfl_11", five, "cpu", ()).command.endswith("scale=cpu")


def scored(name: str, rows: dict[str, list[float]]) -> Measurement:
    study = read_study(name)
    metric = next(iter(study.metrics.values()))
    results = [
        Result(Cell(row, column), 0, {metric: value}, "a", "d", "c")
        for row, values in rows.items()
        for column, value in zip(study.columns, values, strict=False)
    ]
    return Measurement(name, study, "cpu", tuple(results))


def test_it_counts_in_how_many_columns_a_row_is_the_best_here_and_in_the_paper() -> None:
    part = scored("ccfc_1", {"k-FED": [0.5, 0.9, 0.1], "CCFC": [0.6, 0.8, 0.3, 0.9]})
    # In the paper CCFC leads by 0.92 to 0.51, 0.82 to 0.49 and 0.67 to 0.45.
    assert list(_tally(part, "NMI")) == [
        "Best of these rows by NMI, in 3 columns (in the paper): k-FED 1 (0), CCFC 2 (3)."
    ]
    assert list(_tally(scored("ccfc_1", {"CCFC": [0.6]}), "NMI")) == []


def test_rows_that_are_printed_only_stand_beside_those_that_were_run() -> None:
    part = scored("fedmcc_6", {"MCC": [0.3]})
    table, text = _table(part), "\n".join(_measured(part))
    assert "| CIFAR-10 (here Fashion-MNIST) | NCC | – | – | 0.943 | – |" in table
    assert "STL-10" not in table
    assert "No run has: NMI; ARI." in text
    assert "Not run at this scale: k-means; SC; CC; AE; VAE; DEC; SCAN; IDFD; CIFAR-20;" in text
