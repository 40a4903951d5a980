"""Whether the paper's order holds: yes, no, undecided."""

import pytest

from coterie.studies.comparison_table import Spread
from coterie.studies.measurement import Measured, sign


def measured(*values: float) -> Measured:
    spread = Spread.of(values)
    assert spread is not None
    return Measured(spread, len(values))


@pytest.mark.parametrize(
    ("first", "second", "expected", "noise", "found"),
    [
        ((0.9,), (0.8,), 0.01, 0.05, "yes"),
        ((0.8,), (0.9,), 0.01, 0.05, "no"),
        ((0.8,), (0.9,), -0.01, 0.05, "yes"),
        ((0.84,), (0.8,), 1.0, 0.05, "undecided"),
        ((0.8,), (0.8,), 1.0, 0.0, "undecided"),
        # Standard deviations of 0.1 over two seeds: two standard errors are 0.2.
        ((0.8, 0.941421356), (0.7, 0.841421356), 1.0, 0.0, "undecided"),
        ((0.8, 0.81), (0.7, 0.71), 1.0, 0.0, "yes"),
        ((0.8, 0.81), (0.7, 0.71), 1.0, 0.2, "undecided"),
        # One seed says nothing about the spread, so only the noise counts.
        ((0.8, 0.941421356), (0.7,), 1.0, 0.05, "yes"),
    ],
)
def test_a_difference_counts_beyond_the_noise(first, second, expected, noise, found) -> None:
    assert sign(measured(*first), measured(*second), expected, noise) == found
