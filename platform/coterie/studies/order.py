"""Whether two measured numbers stand to each other as a paper has them."""

import math
from dataclasses import dataclass
from typing import Literal

from coterie.studies.comparison_table import Spread

Sign = Literal["yes", "no", "undecided"]


@dataclass(frozen=True)
class Measured:
    """A cell's number over its seeds."""

    spread: Spread
    seeds: int


def sign(first: Measured, second: Measured, expected: float, noise: float) -> Sign:
    """Whether the difference of two cells has the paper's sign.

    It is undecided up to two standard errors of the difference where both have several seeds, and
    up to `noise` in any case.

    Args:
        first: The cell that is compared.
        second: The cell that it is compared with.
        expected: First less second in the paper, or only a number of that sign; not 0.
        noise: The least difference that counts.
    """
    variance, several = 0.0, True
    for cell in (first, second):
        several = several and cell.spread.deviation is not None
        variance += (cell.spread.deviation or 0.0) ** 2 / cell.seeds
    least = max(noise, 2 * math.sqrt(variance) if several else 0.0)
    difference = first.spread.mean - second.spread.mean
    if abs(difference) <= least:
        return "undecided"
    return "yes" if difference * expected > 0 else "no"
