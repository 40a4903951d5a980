"""The inertia is summed block by block: the same bits, without copies of the data."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from coterie.clustering import kmeans as module


class Largest(TorchDispatchMode):
    """Watches how many values the largest tensor has that is made."""

    def __init__(self):
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.values = max(self.values, out.numel())
        return out


def drawn(rows, features):
    draw = np.random.default_rng(rows)
    points = torch.from_numpy(draw.normal(size=(rows, features)).astype(np.float32))
    return points, points[:3].clone(), torch.from_numpy(draw.random(rows))


@pytest.mark.parametrize("shape", [(1000, 7), (101, 64), (99, 200), (5, 3)])
@pytest.mark.parametrize("weighted", [False, True])
def test_blocks_have_the_bits_of_all_rows_at_once(shape, weighted, monkeypatch):
    points, centroids, weights = drawn(*shape)
    monkeypatch.setattr(module, "_ROWS", 100)
    found = module._result(points, centroids, weights if weighted else None)
    squared = (points - centroids[found.assignments]).double().square().sum(dim=1)
    whole = squared * weights if weighted else squared
    assert found.inertia == float(whole.numpy().sum())


def test_no_copy_of_the_data_is_made(monkeypatch):
    points, centroids, weights = drawn(1000, 50)
    monkeypatch.setattr(module, "_ROWS", 100)
    with Largest() as largest:
        module._result(points, centroids, weights)
    assert largest.values <= 100 * 50
