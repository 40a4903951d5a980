"""Blocks of rows, and rows that are not finite."""

import pytest
import torch

from coterie.clustering import blocks
from coterie.clustering.blocks import count_not_finite, row_blocks
from coterie.clustering.lattice import LIMIT, on_lattice, rounded
from coterie.errors import DataError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("width", "rows"), [(3, [4, 4, 2]), (100, [1] * 10), (0, [10])])
def test_blocks_are_consecutive_rows_of_all(monkeypatch, width, rows):
    monkeypatch.setattr(blocks, "BLOCK", 12)
    points, labels = torch.rand(10, width), torch.arange(10)
    found = [*row_blocks(points, labels)]
    assert [len(own) for _, own in found] == rows
    assert torch.equal(torch.cat([part for part, _ in found]), points)
    assert torch.equal(torch.cat([own for _, own in found]), labels)


@pytest.mark.parametrize(
    ("row", "bad"),
    [
        ([1.0, 2.0, 3.0], 0),
        ([NAN, 0.0, 0.0], 1),
        ([INF, -INF, 0.0], 1),
        ([-INF, 0.0, 0.0], 1),
        ([3e38, 3e38, 3e38], 0),  # whose sum is not finite
        ([3e38, NAN, 3e38], 1),
    ],
)
def test_rows_with_a_value_that_is_not_finite_are_counted(row, bad):
    points = torch.ones(5, 3)
    points[3] = torch.tensor(row)
    assert count_not_finite(points) == bad
    assert count_not_finite(points[:, :0]) == 0


@pytest.mark.parametrize("given", [torch.rand(7, 5) * 9 - 4, torch.rand(5, 7).T, torch.rand(0, 3)])
def test_rounding_in_blocks_has_the_bits_of_all_at_once(monkeypatch, given):
    monkeypatch.setattr("coterie.clustering.lattice.BLOCK", 4)
    assert torch.equal(on_lattice(given), rounded(given).int())
    assert on_lattice(given).dtype == torch.int32


@pytest.mark.parametrize("value", [NAN, INF, LIMIT + 1.0, -LIMIT - 1.0])
@pytest.mark.parametrize("place", [0, 34])
def test_a_value_out_of_range_is_refused_in_any_block(monkeypatch, value, place):
    monkeypatch.setattr("coterie.clustering.lattice.BLOCK", 4)
    points = torch.rand(7, 5)
    points.view(-1)[place] = value
    with pytest.raises(DataError, match="exact sums take at most 512"):
        on_lattice(points)
