"""What a run says of data and config before it trains."""

import numpy as np
import pytest

from coterie import DataArrays, compose
from coterie.run.doubts import collapsed, doubts


def told(experiment, samples, *overrides):
    config = compose(f"experiment={experiment}", *overrides)
    data = DataArrays(name="own", samples=samples, test_samples=samples[:1])
    return [*doubts(config, data, [np.arange(len(samples))])]


def rows(count, *deviations):
    drawn = np.random.default_rng(0).normal(size=(count, len(deviations)))
    return (drawn * deviations).astype(np.float32)


@pytest.mark.parametrize("shape", [(20, 1, 8, 8), (199, 1, 8, 8)])
def test_a_network_that_trains_on_few_samples_is_told(shape):
    (sentence,) = told("fedmcc_digits", np.zeros(shape, np.uint8))
    assert sentence.startswith(f"{shape[0]} samples are few to train a network on")


def test_methods_of_sums_take_few_samples_and_any_take_many():
    assert not told("concord_digits", np.zeros((20, 1, 8, 8), np.uint8))
    assert not told("fedmcc_digits", np.zeros((200, 1, 8, 8), np.uint8))


@pytest.mark.parametrize(
    ("deviations", "column"), [((1, 900, 2), 2), ((1, 1e-3, 0, 1e-3), 1), ((5, 5000), 2)]
)
@pytest.mark.parametrize("experiment", ["fedavg_digits", "kmeans_digits"])
def test_a_column_far_wider_than_the_others_is_told(experiment, deviations, column):
    (sentence,) = told(experiment, rows(500, *deviations))
    assert sentence.startswith(f"Column {column} of the samples varies ")


@pytest.mark.parametrize(
    ("names", "ranges"),
    [
        (
            ("age", "weight (kg)", "Größe"),
            '{age: [-1, 2], "weight (kg)": [-1230, 12300], Größe: [0,',
        ),
        (tuple(f"gene {n}" for n in range(21)), '{"gene 1": [-1230, 12300], …}'),
    ],
)
def test_ranges_of_named_columns_are_given(names, ranges):
    samples = np.zeros((2, len(names)), np.float32)
    samples[:, :3] = [[-1, -1234.5, 0], [2, 12345, 0.1]]
    data = DataArrays(name="own", samples=samples, features=names)
    (sentence,) = doubts(compose("experiment=kmeans_digits"), data, [np.arange(2)])
    assert f"{names[1]} varies 4," in sentence
    assert f"'data.feature_ranges={ranges}" in sentence


@pytest.mark.parametrize("deviations", [(1, 50, 2), (0, 0), (7,), (0, 3)])
def test_columns_of_like_scales_are_not(deviations):
    assert not told("kmeans_digits", rows(500, *deviations))


def test_gradients_of_single_samples_are_told_to_be_slow():
    noise = ["clip=1", "noise_multiplier=1", "unit=sample"]
    overrides = [f"privacy.dp.{each}" for each in noise]
    (sentence,) = told("fedavg_digits", np.zeros((500, 1, 8, 8), np.uint8), *overrides)
    assert "takes several times as long" in sentence


def test_few_samples_for_each_cluster_are_told():
    pictures = np.zeros((600, 1, 8, 8), np.uint8)
    (sentence,) = told("fedmcc_digits", pictures, "method.clusters=30")
    assert sentence.startswith("600 samples are few")
    assert not told("fedmcc_digits", pictures, "method.clusters=20")


@pytest.mark.parametrize("encoder", ["conv2", "torchvision:resnet18"])
def test_random_weights_that_nothing_trains_are_told(encoder):
    (sentence,) = told("kfed_digits", np.zeros((500, 1, 8, 8), np.uint8), f"encoder={encoder}")
    assert sentence.startswith("The encoder's weights are random, and this method trains none")


@pytest.mark.parametrize("encoder", ["raw", "orientations"])
def test_encoders_without_weights_are_not_random(encoder):
    assert not told("kfed_digits", np.zeros((500, 1, 8, 8), np.uint8), f"encoder={encoder}")


def test_labels_without_a_test_set_are_told():
    config = compose("experiment=fedavg_digits")
    pictures = np.zeros((500, 1, 8, 8), np.uint8)
    data = DataArrays(name="own", samples=pictures)
    (sentence,) = doubts(config, data, [np.arange(500)])
    assert sentence.startswith("The data has no test set")
    assert not [*doubts(compose("experiment=fedmcc_digits"), data, [np.arange(500)])]


@pytest.mark.parametrize(
    ("assignments", "said"),
    [
        ([3] * 100, "100.0% of the samples are in cluster 3, so"),
        ([3] * 96 + [1] * 4, "96.0% of the samples are in cluster 3, so"),
        ([3] * 94 + [1] * 6, ""),
        ([-1] * 100, ""),
        ([], ""),
    ],
)
def test_clusters_that_collapsed_into_one_are_told(assignments, said):
    found = collapsed(np.array(assignments, np.int64))
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert collapsed(None) == ""
