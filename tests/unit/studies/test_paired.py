"""Differences over seeds by hand, and against SciPy's paired t-test."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from coterie.studies import paired
from coterie.studies.comparison_table import ComparisonTable
from coterie.studies.paired import differences_csv, differences_figure, paired_differences
from coterie.tracking.run_records import RunRecord

A, B = [0.90, 0.84, 0.95, 0.88], [0.85, 0.80, 0.86, 0.87]


def record(label, seed, value, status="completed"):
    numbers = {"clustering/acc": value}
    return RunRecord(
        label=label, seed=seed, status=status, numbers=numbers, scores=("clustering/acc",)
    )


def table(**labels):
    return ComparisonTable.of(
        record(label, seed, value)
        for label, values in labels.items()
        for seed, value in enumerate(values)
    )


def test_a_difference_is_that_of_a_paired_t_test():
    (found,) = paired_differences(table(a=A, b=B))
    exact = ttest_rel(A, B).confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(A) - np.mean(B))
    assert (found.mean - found.half, found.mean + found.half) == pytest.approx(exact)
    assert (found.first, found.second, found.seeds) == ("a", "b", 4)
    assert found.p == pytest.approx(ttest_rel(A, B).pvalue)
    assert found.told_apart == (exact.low > 0)


def test_p_values_are_corrected_by_holm():
    # Three pairs, the smallest first: 3, 2 and 1 times, and never less than the one before.
    labels = {"a": A, "b": B, "c": [0.70, 0.71, 0.72, 0.70]}
    found = paired_differences(table(**labels))
    raw = {(f, s): ttest_rel(labels[f], labels[s]).pvalue for f, s in combinations(labels, 2)}
    expected, least = {}, 0.0
    for times, pair in zip((3, 2, 1), sorted(raw, key=raw.get), strict=True):
        expected[pair] = least = max(least, min(1.0, times * raw[pair]))
    assert {(one.first, one.second): one.p for one in found} == pytest.approx(expected)
    assert differences_csv(found).splitlines()[0].endswith(",p (Holm)")


def test_equal_differences_of_every_seed_have_no_spread():
    ours, theirs = [0.5, 0.75], [0.25, 0.5]
    (found,) = paired_differences(table(a=ours, b=theirs))
    assert (found.half, found.p, found.told_apart) == (0.0, None, False)


def test_only_seeds_that_both_have_count():
    records = [record("a", seed, value) for seed, value in enumerate(A)]
    records += [record("b", seed, B[seed]) for seed in (1, 3)] + [record("b", 0, 9.0, "failed")]
    (found,) = paired_differences(ComparisonTable.of(records))
    assert (found.seeds, found.mean) == (2, pytest.approx(0.025))


def test_one_seed_has_no_interval_and_no_figure(tmp_path):
    found = paired_differences(table(a=A[:1], b=B[:1]))
    assert found[0].half is None
    assert not found[0].told_apart
    assert differences_figure(found, tmp_path / "x.png") is None
    assert differences_csv(found).splitlines()[1].startswith("clustering/acc,a,b,1,0.05")


def test_the_figure_has_each_pair(tmp_path):
    found = paired_differences(table(a=A, b=B, **{"cost_$1_to_$2": A}))
    assert len(found) == 3
    assert differences_figure(found, tmp_path / "x.png", "a run").stat().st_size > 5000


def test_a_metric_has_a_row_for_the_pairs_that_have_it(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(paired, "save", lambda figure, *_: drawn.append(figure))
    first = paired_differences(table(a=A, b=B, c=A))
    others = [
        replace(one, metric="knn/acc") for one in first if {one.first, one.second} == {"a", "b"}
    ]
    differences_figure([*first, *others], tmp_path / "x.png")
    labels = [[text.get_text() for text in axes.get_yticklabels()] for axes in drawn[0].axes]
    assert labels == [["a – b", "a – c", "b – c"], ["a – b"]]


def test_a_metric_of_the_data_alone_has_no_panel_beside_others(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(paired, "save", lambda figure, *_: drawn.append(figure))
    found = paired_differences(table(a=A, b=B))
    same = [replace(one, metric="kmeans_raw/acc", mean=0.0, half=0.0) for one in found]
    differences_figure([*same, *found], tmp_path / "x.png")
    differences_figure(same, tmp_path / "x.png")
    assert [[axes.get_xlabel() for axes in each.axes] for each in drawn] == [
        ["clustering/acc"],
        ["kmeans_raw/acc"],
    ]
