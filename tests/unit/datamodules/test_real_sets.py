"""The real data sets, where the environment names them: sizes, classes and known means."""

import os
from pathlib import Path

import numpy as np
import pytest
import torchvision

from coterie.datamodules.base import ROOT_VARIABLE
from coterie.datamodules.cifar10 import CIFAR10
from coterie.datamodules.mnist import MNIST, FashionMNIST
from coterie.datamodules.usps import USPS


def load(cls, root, **keys):
    return cls(cls.Config(root=str(root), **keys)).arrays()


REAL = os.environ.get(ROOT_VARIABLE)


@pytest.mark.skipif(not REAL, reason=f"{ROOT_VARIABLE} names no data sets")
class TestRealData:
    @pytest.mark.parametrize(("cls", "mean"), [(MNIST, 0.1307), (FashionMNIST, 0.2860)])
    def test_idx_sets(self, cls, mean):
        if not (Path(REAL) / cls.__name__).is_dir():
            pytest.skip(f"no {cls.__name__} there")
        data = load(cls, REAL)
        assert data.samples.shape == (60_000, 1, 28, 28)
        assert len(data.test_labels) == 10_000
        assert data.samples.mean() / 255 == pytest.approx(mean, abs=1e-4)
        torchvisions = getattr(torchvision.datasets, cls.__name__)(root=REAL, download=False)
        np.testing.assert_array_equal(data.samples[:, 0], torchvisions.data.numpy())
        np.testing.assert_array_equal(data.labels, torchvisions.targets.numpy())
        assert data.classes == tuple(str(n).split(" - ")[0] for n in torchvisions.classes)

    def test_cifar10(self):
        if not (Path(REAL) / "cifar10").is_dir():
            pytest.skip("no cifar10 there")
        data = load(CIFAR10, REAL, split="test")
        assert data.samples.shape == (10_000, 3, 32, 32)
        assert np.bincount(data.labels).tolist() == [1000] * 10
        # The test set's well-known first labels and channel means.
        assert [data.classes[label] for label in data.labels[:4]] == [
            "cat",
            "ship",
            "ship",
            "airplane",
        ]
        means = data.samples.mean(axis=(0, 2, 3)) / 255
        np.testing.assert_allclose(means, [0.4942, 0.4851, 0.4504], atol=1e-4)

    def test_usps(self):
        if not (Path(REAL) / "usps").is_dir():
            pytest.skip("no usps there")
        data = load(USPS, REAL)
        assert data.samples.shape == (7291, 1, 16, 16)
        assert data.test_samples.shape == (2007, 1, 16, 16)
        assert np.bincount(data.labels).tolist() == [
            1194,
            1005,
            731,
            658,
            652,
            556,
            664,
            645,
            542,
            644,
        ]
