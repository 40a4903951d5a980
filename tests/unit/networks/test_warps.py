"""Fixed warps: what they do to an image, and that a batch does not matter."""

import numpy as np
import pytest
import torch

from coterie.networks.warps import Warp, WarpSizes

IDENTITY = np.eye(2, 3)


def image(side: int = 9) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randint(0, 256, (3, 1, side, side), dtype=torch.uint8)


def test_the_identity_leaves_images_alone() -> None:
    assert torch.equal(Warp(IDENTITY, 9, 9)(image()), image())


def test_a_shift_by_whole_pixels_moves_them_and_the_edge_is_black() -> None:
    right = IDENTITY.copy()
    right[0, 2] = 2 / 9 * 2  # two pixels: output reads the input two to its right
    moved = Warp(right, 9, 9)(image())
    assert torch.equal(moved[..., :-2], image()[..., 2:])
    assert not moved[..., -2:].any()


def test_a_quarter_turn_is_numpys() -> None:
    turn = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0]])
    turned = Warp(turn, 9, 9)(image())[0, 0].numpy()
    assert any(np.array_equal(turned, np.rot90(image()[0, 0].numpy(), k)) for k in (1, 3))


def test_it_is_torchs_bilinear_sampling_to_the_grid_of_sixteenths() -> None:
    torch.manual_seed(1)
    smooth = torch.nn.functional.avg_pool2d(torch.rand(2, 1, 32, 32) * 255, 5, 1).to(torch.uint8)
    for pair in WarpSizes(10.0, 0.12, 0.18, 0.075).pairs():
        for affine in pair:
            found = Warp(affine, 28, 28)(smooth).float()
            theta = torch.from_numpy(affine).float().repeat(2, 1, 1)
            grid = torch.nn.functional.affine_grid(theta, [2, 1, 28, 28], align_corners=False)
            theirs = torch.nn.functional.grid_sample(smooth.float(), grid, align_corners=False)
            assert (found - theirs).abs().max() < 255 / 16


@pytest.mark.parametrize(("sizes", "pairs"), [((10, 0.1, 0.1, 0.1), 6), ((0, 0, 0.1, 0), 1)])
def test_each_parameter_has_a_pair(sizes: tuple[float, ...], pairs: int) -> None:
    found = WarpSizes(*sizes).pairs()
    assert len(found) == pairs
    for up, down in found:
        assert not np.array_equal(up, down)
        assert np.allclose((up + down) / 2, IDENTITY, atol=0.02)


def test_a_batch_of_one_has_the_same_bits() -> None:
    warp = Warp(WarpSizes(10.0, 0.1, 0.1, 0.1).pairs()[0][0], 9, 9)
    assert torch.equal(torch.cat([warp(one[None]) for one in image()]), warp(image()))
