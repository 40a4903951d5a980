"""The sheet of clusters: mean images of enough samples, and vectors and tiny data are drawn too."""

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from sklearn.datasets import load_digits

from coterie.evaluation.cluster_figure import FEWEST, Clustered, cluster_figure, mean_images


def digits(count: int = 300) -> Clustered:
    data = load_digits()
    pixels = (data.images[:count, None] * 255 / 16).astype(np.uint8)
    return Clustered(
        torch.from_numpy(data.data[:count]).float(),
        data.target[:count].astype(np.int64),
        np.full(count, 0.75, np.float32),
        pixels,
    )


def test_a_mean_image_stands_for_ten_samples_or_more() -> None:
    found = digits()
    members = np.flatnonzero(found.assignments == 3)
    images = mean_images(found, members, seed=0)
    assert 1 <= len(images) <= len(members) // FEWEST
    assert images[0].shape == (8, 8)
    whole = found.samples[members].mean(axis=0)[0]
    alone = mean_images(found, members[: 2 * FEWEST - 1], seed=0)
    np.testing.assert_allclose(alone[0], found.samples[members[: 2 * FEWEST - 1]].mean(axis=0)[0])
    assert np.abs(np.mean(images, axis=0) - whole).mean() < 40
    assert mean_images(found, members[: FEWEST - 1], seed=0) == []


def test_colour_is_drawn_in_colour() -> None:
    found = digits()
    three = Clustered(
        found.embedding, found.assignments, found.confidence, found.samples.repeat(3, axis=1)
    )
    (image, *_) = mean_images(three, np.flatnonzero(found.assignments == 3), seed=0)
    assert image.shape == (8, 8, 3)
    assert 0.0 <= image.min() <= image.max() <= 1.0


@pytest.mark.parametrize("kind", ["images", "vectors", "few", "one cluster"])
def test_it_is_drawn(tmp_path, kind: str) -> None:
    found = digits(4 if kind == "few" else 300)
    samples = found.samples.reshape(len(found.samples), -1) / 255 if kind == "vectors" else None
    given = Clustered(
        found.embedding,
        found.assignments * (kind != "one cluster"),
        found.confidence,
        found.samples if samples is None else samples.astype(np.float32),
    )
    path = cluster_figure(given, tmp_path / "clusters.png", seed=0, about="Concord on Digits")
    assert imread(path).std() > 0.05
