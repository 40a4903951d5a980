"""Which claims hold, and what would decide those that are undecided, by hand."""

import pytest

from coterie.studies.measurement import Measurement
from coterie.studies.paper_study import Cell, PaperStudy
from coterie.studies.results_claims import claims_table
from coterie.studies.results_file import Result

STUDY = PaperStudy.model_validate(
    {
        "about": "a",
        "paper": "Paper, table 1",
        "page": "page",
        "metrics": {"ACC": "clustering/acc"},
        "reference": "ours",
        "rows": {"ours": "experiment=a", "theirs": "experiment=b"},
        "columns": {"data": "data=digits"},
        "printed": {"ACC": {"ours": [0.9], "theirs": [0.8]}},
        "scales": {
            name: {"budget": "b", "takes": f"{name} hours", "noise": 0.01}
            for name in ("smoke", "cpu", "paper")
        },
        "claims": [{"says": "better", "more": ["ours", "data"], "less": ["theirs", "data"]}],
    }
)


def table(ours, theirs, hours=0.5):
    results = tuple(
        Result(
            Cell(row, "data"),
            seed,
            {"clustering/acc": value, **({"seconds/total": hours * 3600} if hours else {})},
            "c",
            "d",
            "e",
        )
        for row, values in (("ours", ours), ("theirs", theirs))
        for seed, value in enumerate(values)
    )
    return claims_table([[Measurement("study", STUDY, "cpu", results)]])


@pytest.mark.parametrize(("ours", "sign"), [(0.9, "yes"), (0.805, "undecided"), (0.7, "no")])
def test_a_claim_holds_if_the_difference_has_its_sign_and_counts(ours, sign):
    found = table([ours], [0.8])
    assert f"| better | 0.9 against 0.8 | ACC {ours:.3f} against 0.800 | {sign} |" in found
    assert ("What would decide" in found) == (sign == "undecided")


def test_a_spread_that_hides_the_difference_needs_more_seeds():
    # s = 0.02 twice: two errors are 2 √(2 · 0.02² / 2) = 0.04, and 2 · (0.04 / 0.021)² = 7.3.
    spread = 0.02 / 2**0.5
    found = table([0.821 - spread, 0.821 + spread], [0.8 - spread, 0.8 + spread])
    assert "| better | 0.021 | 0.04 | 2 | 6 more seeds, 6.0 hours |" in found
    unknown = table([0.821 - spread, 0.821 + spread], [0.8 - spread, 0.8 + spread], hours=None)
    assert "| 6 more seeds |" in unknown


def test_a_difference_that_does_not_count_needs_a_larger_scale():
    assert "| better | 0.005 | 0.01 | 1 | the scale paper: paper hours for" in table([0.805], [0.8])


def test_a_spread_that_would_need_too_many_seeds_needs_a_larger_scale():
    spread = 0.05 / 2**0.5  # 2 · (0.1 / 0.011)² = 165 seeds
    found = table([0.811 - spread, 0.811 + spread], [0.8 - spread, 0.8 + spread])
    assert (
        "| better | 0.011 | 0.1 | 2 | the scale paper: paper hours for the whole study |" in found
    )


def test_a_claim_without_numbers_is_listed():
    found = table([0.9], [])
    assert found.startswith("Claims measured: 0.")
    assert found.endswith("- [Paper, table 1](results/page.md#paper-table-1): better.")
