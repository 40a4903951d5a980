"""Checks, baseline and fine-tuning of streamed samples: bounded parts, and the bits of memory."""

import numpy as np
import pytest
import torch

from coterie.clustering.kmeans import kmeans
from coterie.contract import data_checks
from coterie.contract.data import DataArrays
from coterie.contract.samples import StreamedSamples, picked
from coterie.errors import DataError
from coterie.evaluation import raw_baseline
from coterie.evaluation.raw_baseline import raw_clusters
from coterie.evaluation.semi_supervised import fine_tune

SHAPE = (600, 3, 4, 5)
WIDTH = 60


@pytest.fixture
def samples():
    """Images of three blobs."""
    rng = np.random.default_rng(0)
    centres = rng.integers(40, 200, (3, *SHAPE[1:]))
    found = centres[np.arange(SHAPE[0]) % 3] + rng.integers(-30, 30, SHAPE)
    return found.astype(np.uint8)


class Reads:
    """Streams an array, and notes how many samples each read asked for."""

    def __init__(self, array):
        self.asked = []

        def read(rows):
            self.asked.append(len(rows))
            return array[rows]

        self.samples = StreamedSamples(shape=array.shape, dtype=array.dtype, read=read)


def test_the_baseline_reads_a_sample_and_blocks(samples, monkeypatch):
    monkeypatch.setattr(raw_baseline, "_BLOCK_VALUES", 50 * WIDTH)
    reads = Reads(samples)
    found = raw_clusters(reads.samples, 3, 0, most=100 * WIDTH)
    assert max(reads.asked) == 50
    assert sum(reads.asked) == 100 + SHAPE[0]
    np.testing.assert_array_equal(found, raw_clusters(samples, 3, 0, most=100 * WIDTH))
    assert len({tuple(np.unique(found[kind::3])) for kind in range(3)}) == 3


def test_the_baseline_of_small_data_is_k_means_on_all_of_it(samples):
    whole = samples.reshape(len(samples), -1).astype(np.float32) / 255
    expected = kmeans(whole, 3, seed=4).assignments.numpy()
    np.testing.assert_array_equal(raw_clusters(Reads(samples).samples, 3, 4), expected)


def test_the_checks_read_blocks_and_stop_at_the_first_difference(samples, monkeypatch):
    monkeypatch.setattr(data_checks, "_VALUES", 10 * WIDTH)
    reads = Reads(samples)
    data_checks.check_data(DataArrays(name="x", samples=reads.samples))
    assert reads.asked == [1, 10]
    reads = Reads(np.zeros((95, 6), np.float32))
    monkeypatch.setattr(data_checks, "_VALUES", 60)
    with pytest.raises(DataError, match="all 95 samples are the same"):
        data_checks.check_data(DataArrays(name="x", samples=reads.samples))
    assert max(reads.asked) == 10


def test_fine_tuning_reads_the_labelled_samples_and_blocks(samples):
    encoder = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(WIDTH, 8))
    labels, order = np.arange(len(samples)) % 3, np.random.default_rng(1).permutation(600)
    fit, held = order[:400], order[400:]

    def tuned(given):
        train, test = (picked(given, fit), labels[fit]), (picked(given, held), labels[held])
        return fine_tune(encoder, train, test, classes=3, share=0.1, seed=0, epochs=2)

    reads = Reads(samples)
    assert tuned(reads.samples) == tuned(samples)
    assert reads.asked == [39, 200]  # a tenth of each class, rounded; the samples to score
