import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from coterie.clustering import kmeans as module
from coterie.clustering.kmeans import nearest_centroids
from coterie.errors import DataError


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_assign_is_the_slow_search(metric, monkeypatch):
    x = load_digits().data.astype(np.float32)
    centroids = x[::150] + 1
    if metric == "cosine":
        unit = [v / np.linalg.norm(v, axis=1, keepdims=True) for v in (x, centroids)]
        expected = (unit[0] @ unit[1].T).argmax(1)
    else:
        expected = ((x[:, None] - centroids[None]) ** 2).sum(-1).argmin(1)
    np.testing.assert_array_equal(nearest_centroids(x, centroids, metric).numpy(), expected)
    monkeypatch.setattr(module, "_ROWS", 100)
    np.testing.assert_array_equal(nearest_centroids(x, centroids, metric).numpy(), expected)
    euclidean = nearest_centroids(x, centroids, "euclidean").numpy()
    assert (metric == "euclidean") == bool((euclidean == expected).all())


def test_assign_is_exact_far_from_the_origin():
    x = torch.tensor([[10000.0, 0.01], [10000.0, 0.99]])
    assert nearest_centroids(x, torch.tensor([[10000.0, 0.0], [10000.0, 1.0]])).tolist() == [0, 1]


def test_assign_refuses_what_does_not_fit():
    with pytest.raises(DataError, match="metric=manhattan"):
        nearest_centroids(np.zeros((2, 2)), np.zeros((2, 2)), "manhattan")
    with pytest.raises(DataError, match=r"points \(2, 2\) and centroids \(2, 3\)"):
        nearest_centroids(np.zeros((2, 2)), np.zeros((2, 3)))
