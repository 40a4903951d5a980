"""Mean ranks and the critical difference, against the numbers of Demšar (2006)."""

import pytest

from coterie.studies.comparison_table import ComparisonTable
from coterie.studies.ranks import Ranks, cliques, critical_difference, mean_ranks, ranks_figure
from coterie.tracking.run_records import RunRecord


def table(metric="clustering/acc", **scores):
    return ComparisonTable.of(
        RunRecord(
            label=f"{method} data={name}",
            seed=seed,
            status="completed",
            numbers={metric: value + seed / 1000},
            scores=(metric,),
        )
        for method, values in scores.items()
        for name, value in zip(("mnist", "usps", "digits"), values, strict=False)
        for seed in (0, 1)
    )


@pytest.mark.parametrize(("k", "q"), [(2, 1.960), (3, 2.343), (4, 2.569), (10, 3.164)])
def test_the_critical_difference_has_the_papers_quantiles(k, q):
    assert critical_difference(k, 14) == pytest.approx(q * (k * (k + 1) / 84) ** 0.5, abs=1e-3)


def test_the_example_of_the_paper():
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)


def test_methods_are_ranked_on_each_data_set():
    found = mean_ranks(table(a=(0.9, 0.8, 0.7), b=(0.5, 0.8, 0.6), c=(0.6, 0.2, 0.5)))
    assert found.mean == pytest.approx({"a": (1 + 1.5 + 1) / 3, "b": 6.5 / 3, "c": 8 / 3})
    assert found.sets == 3
    lower = mean_ranks(table("train/loss", a=(0.9, 0.8, 0.7), b=(0.5, 0.7, 0.6), c=(0.1,) * 3))
    assert lower.mean == pytest.approx({"a": 3, "b": 2, "c": 1})


def test_too_few_methods_or_data_sets_have_no_ranks():
    assert mean_ranks(table(a=(0.9, 0.8, 0.7), b=(0.5, 0.8, 0.6))) is None
    assert mean_ranks(table(a=(0.9, 0.8), b=(0.5, 0.8), c=(0.1, 0.2))) is None
    assert mean_ranks(ComparisonTable.of([])) is None


def test_a_bar_joins_those_that_are_not_apart(tmp_path):
    ranks = Ranks("acc", {"a": 1.2, "b": 2.0, "c": 3.1, "d": 3.7}, 1.25, 14)
    assert cliques(ranks) == [(1.2, 2.0), (2.0, 3.1), (3.1, 3.7)]
    assert ranks_figure(ranks, tmp_path / "ranks.png").stat().st_size > 5000
