"""The losses of BYOL and SimSiam against loops, at known angles, and what takes a gradient."""

import pytest
import torch
from torch.nn import functional

from coterie.errors import ContractError
from coterie.losses import negative_cosine, normalised_error
from tests.builders.slow_losses import cosine


def random_pair(n: int = 5, d: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return list(torch.randn(2, n, d, dtype=torch.float64, generator=generator))


def test_negative_cosine_is_that_of_a_loop() -> None:
    p, z = random_pair()
    expected = -sum(cosine(a, b) for a, b in zip(p, z, strict=True)) / 5
    assert negative_cosine(p, z).item() == pytest.approx(expected, rel=1e-13)


def test_the_normalised_error_is_the_squared_distance_of_unit_vectors() -> None:
    p, z = random_pair()
    gaps = functional.normalize(p, dim=1) - functional.normalize(z, dim=1)
    expected = gaps.square().sum(dim=1).mean().item()
    assert normalised_error(p, z).item() == pytest.approx(expected, rel=1e-13)


ANGLES = [("same", -1, 0), ("right", 0, 2), ("opposite", 1, 4)]


@pytest.mark.parametrize(("angle", "cosines", "errors"), ANGLES)
def test_known_angles_at_any_length(angle: str, cosines: float, errors: float) -> None:
    p = 3.0 * torch.eye(4, dtype=torch.float64)
    z = {"same": p / 7, "right": p.roll(1, dims=1), "opposite": -2 * p}[angle]
    assert negative_cosine(p, z).item() == pytest.approx(cosines, abs=1e-15)
    assert normalised_error(p, z).item() == pytest.approx(errors, abs=1e-15)


@pytest.mark.parametrize("loss", [negative_cosine, normalised_error])
def test_no_gradient_reaches_the_projections(loss) -> None:
    p, z = (view.requires_grad_() for view in random_pair())
    loss(p, z).backward()
    assert z.grad is None
    assert p.grad.abs().max() > 0
    assert (p.grad * p).sum(dim=1).abs().max() < 1e-15, "a length matters"


def test_shapes_that_differ_are_refused() -> None:
    p, z = random_pair()
    with pytest.raises(ContractError, match=r"got shapes \(5, 4\) and \(4, 4\); give it two"):
        negative_cosine(p, z[1:])
