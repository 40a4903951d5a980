"""The bare loop that Coterie is timed beside trains by the same loss."""

import torch

from coterie.losses.contrastive import nt_xent
from tests.gpu.bare_simclr import contrast


def test_its_loss_is_nt_xent():
    one, two = torch.randn(2, 7, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    torch.testing.assert_close(contrast(one, two, 0.2), nt_xent(one, two, 0.2))
