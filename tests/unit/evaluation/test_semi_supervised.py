"""Few labels: which ones are given, that all of the network learns, that nothing else changes."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.errors import DataError
from coterie.evaluation.semi_supervised import fine_tune, labelled_rows
from coterie.networks.encoders import MLP

LABELS = np.repeat(np.arange(3), (100, 200, 4))


@pytest.mark.parametrize(
    ("share", "counts"), [(0.01, [1, 2, 1]), (0.1, [10, 20, 1]), (1.0, [100, 200, 4])]
)
def test_each_class_gives_its_share_and_at_least_one(share, counts):
    rows = labelled_rows(LABELS, share, seed=0)
    assert np.bincount(LABELS[rows]).tolist() == counts
    assert len(np.unique(rows)) == len(rows)
    assert np.array_equal(rows, np.sort(rows))
    assert np.array_equal(rows, labelled_rows(LABELS, share, seed=0))


def test_another_seed_gives_other_rows():
    assert not np.array_equal(labelled_rows(LABELS, 0.1, 0), labelled_rows(LABELS, 0.1, 1))


@pytest.mark.parametrize("share", [0.0, 1.1])
def test_an_impossible_share_is_refused(share):
    with pytest.raises(DataError, match=f"share={share:g}: it must be above 0 and at most 1"):
        labelled_rows(LABELS, share, 0)


def blobs(seed, count=150):
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 3, count)
    centres = np.array([[4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 0]])
    return (centres[labels] + draw.normal(size=(count, 4))).astype(np.float32), labels


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return MLP(hidden=(16,), features=8).build((4,))


def scores(encoder, share=0.1, seed=0, **options):
    train, test = blobs(0), blobs(1)
    options = {"epochs": 40, "learning_rate": 1e-2, **options}
    return fine_tune(encoder, train, test, classes=3, share=share, seed=seed, **options)


def test_a_few_labels_are_enough_for_separate_classes(encoder):
    found = scores(encoder)
    assert found["acc"] > 0.95
    assert found["f1_macro"] > 0.95
    assert scores(encoder, epochs=1, learning_rate=1e-9)["acc"] < 0.8


def test_the_same_seed_gives_the_same_scores_and_changes_nothing_else(encoder):
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    encoder.requires_grad_(False).eval()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first = scores(encoder, epochs=3)
    assert torch.equal(torch.rand(1), expected)
    assert first == scores(encoder, epochs=3)
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not encoder.training


class Dead(nn.Module):
    """Gives nothing until it is trained itself: a frozen one could not be told from chance."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 0.001))

    def forward(self, samples):
        return samples @ self.weight


def test_the_encoder_itself_learns():
    encoder = Dead().requires_grad_(False)
    assert scores(encoder, share=1.0, epochs=60, learning_rate=3e-2)["acc"] > 0.9


def test_a_single_labelled_sample_is_skipped_not_fatal(encoder):
    samples, labels = blobs(0)
    only = samples[:1], np.zeros(1, dtype=np.int64)
    with_norm = nn.Sequential(encoder, nn.BatchNorm1d(8))
    found = fine_tune(with_norm, only, (samples, labels), classes=3, share=1.0, seed=0, epochs=2)
    assert 0.0 <= found["acc"] <= 1.0


def test_labels_beyond_the_classes_are_refused(encoder):
    with pytest.raises(DataError, match=r"train labels in 0\.\.2: give integers in 0\.\.1"):
        fine_tune(encoder, blobs(0), blobs(1), classes=2, share=1.0, seed=0, epochs=1)
