"""What a run says of data and config before it trains."""

from dataclasses import replace

import numpy as np
import pytest

from coterie import DataArrays, compose
from coterie.contract.samples import StreamedSamples
from coterie.datamodules.manifest import Manifest
from coterie.errors import DataError
from coterie.networks.encoders import Raw
from coterie.run.doubts import check_range, doubtful_clusters, doubts


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
            ("Größe", "weight (kg)", "fat %"),
            '{Größe: [-1, 2], "weight (kg)": [-1240, 12400], "fat %": [0, 0.1]}',
        ),
        (tuple(f"gene {n}" for n in range(21)), '{"gene 1": [-1240, 12400], …}'),
    ],
)
def test_ranges_of_named_columns_are_given(names, ranges):
    samples = np.tile(np.array([[0.0], [0.1]], np.float32), len(names))
    samples[:, :3] = [[-1, -1234.5, 0], [2, 12345, 0.1]]
    data = DataArrays(name="own", samples=samples, features=names)
    (sentence,) = doubts(compose("experiment=kmeans_digits"), data, [np.arange(2)])
    assert f"{names[1]} varies " in sentence
    assert f"'data.feature_ranges={ranges}" in sentence


def test_gaps_do_not_hide_a_wide_column():
    samples = np.random.default_rng(0).random((30, 3)) * [1, 1000, 1]
    samples[4, 0] = np.nan
    (sentence,) = doubts(*table(samples), [np.arange(30)])
    assert sentence.startswith("b varies ")


def test_a_constant_column_needs_no_range():
    samples = np.array([[0.1, 5, 1], [0.9, 80000, 1]])
    (sentence,) = doubts(*table(samples), [np.arange(2)])
    assert "'data.feature_ranges={a: [0.1, 0.9], b: [5, 80000]}'" in sentence


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        (np.arange(100_000, 100_030), "'data.feature_columns=[a,c]' leaves out"),
        (np.arange(100_030, 100_000, -1), "'data.feature_columns=[a,c]' leaves out"),
        (np.arange(30) * 1000.0, "'data.feature_ranges={a: "),
        (np.repeat([100_000, 200_000], 15), "'data.feature_ranges={a: "),
    ],
)
def test_an_identifier_is_told_as_one(numbers, told):
    columns = np.random.default_rng(0).random((30, 3))
    columns[:, 1] = numbers
    config, data = table(columns)
    with pytest.raises(DataError, match="has a value of magnitude") as caught:
        check_range(config.model_copy(update={"encoder": Raw()}), data)
    assert told in str(caught.value)


@pytest.mark.parametrize("columns", [3, 25])
def test_a_large_column_that_is_constant_is_left_out(columns):
    samples = np.random.default_rng(0).random((30, columns)).astype(np.float32)
    samples[:, 1] = 1e6
    names = tuple(f"c{n}" for n in range(columns))
    config, data = table(samples[:, :3])
    data = replace(data, samples=samples, features=names)
    with pytest.raises(DataError, match=r"it is the same in all rows, which 'data.feature_columns"):
        check_range(config.model_copy(update={"encoder": Raw()}), data)


def test_a_column_that_numbers_the_rows_is_told_also_where_it_outweighs_nothing():
    columns = np.random.default_rng(0).random((60, 3)) * 20
    columns[:, 1] = np.arange(60) + 5
    config, data = table(columns)
    (sentence,) = [each for each in doubts(config, data, [np.arange(60)]) if "numbers" in each]
    assert sentence == (
        "b numbers the rows and says nothing about them; 'data.feature_columns=[a,c]' "
        "leaves it out."
    )
    alone = table(np.arange(60.0)[:, None])
    assert not [each for each in doubts(*alone, [np.arange(60)]) if "numbers" in each]
    columns[30:, 1] += 1
    assert not [each for each in doubts(*table(columns), [np.arange(60)]) if "numbers" in each]


def test_an_identifier_that_outweighs_is_told_as_one():
    columns = np.random.default_rng(0).random((300, 3))
    columns[:, 1] = np.arange(300) + 5
    config, data = table(columns)
    (sentence,) = doubts(config, data, [np.arange(300)])
    assert sentence.startswith("b varies ")
    assert sentence.endswith("'data.feature_columns=[a,c]' leaves out.")


@pytest.mark.parametrize(
    ("row", "widest", "told"),
    [
        (
            [1e5, 1e6, 1],
            "b",
            "; it looks like an identifier, another whole number in each row, which "
            "'data.feature_columns=[a,c]' leaves out, and 'data.feature_ranges={a: [0, 96700], "
            "c: [0, 0.967]}' brings the others to like scales.",
        ),
        (
            [1e8, 1e5, 1],
            "a",
            "; 'data.feature_ranges={a: [0, 96700000], c: [0, 0.967]}' brings the others to "
            "like scales, and 'data.feature_columns=[a,c]' leaves out b, which looks like an "
            "identifier.",
        ),
        (
            [1e5, 0, 1],
            "a",
            "; 'data.feature_ranges={a: [0, 96700], c: [0, 0.967]}' brings the others to like "
            "scales, and 'data.feature_columns=[a,c]' leaves out b, which is the same in all rows.",
        ),
    ],
)
def test_all_that_is_wrong_with_columns_is_told_at_once(row, widest, told):
    columns = np.arange(30)[:, None] / 30 * np.array(row)
    columns[:, 1] = np.arange(30) + row[1] if row[1] else 60_000
    config, data = table(columns)
    config = config.model_copy(update={"encoder": Raw()})
    with pytest.raises(DataError, match=f"^t: {widest} has a value of magnitude") as caught:
        check_range(config, data)
    assert str(caught.value).endswith(told)


def test_all_that_is_left_out_is_named():
    columns = np.arange(30)[:, None] / 30 * np.array([1e3, 1, 1])
    columns[:, 1], columns[:, 2] = np.arange(30), 1.0
    config, data = table(columns)
    with pytest.raises(
        DataError, match=r"leaves out b, which .*, and c, which say nothing"
    ) as told:
        check_range(config.model_copy(update={"encoder": Raw()}), data)
    assert "'data.feature_columns=[a]'" in str(told.value)


def table(samples, ranges=None, experiment="kmeans_digits"):
    names = tuple("abc"[: samples.shape[1]])
    data = DataArrays(name="t", samples=samples.astype(np.float32), features=names)
    given = Manifest.Config(path="t.csv", feature_ranges=ranges or {})
    return compose(f"experiment={experiment}").model_copy(update={"data": given}), data


def test_ranges_that_are_given_stay_in_what_is_proposed():
    samples = np.array([[0.1, 5, 0], [0.9, 80000, 1]])
    config, data = table(samples, {"a": (0.0, 100.0)})
    (sentence,) = doubts(config, data, [np.arange(2)])
    assert "'data.feature_ranges={a: [0, 100], b: [5, 80000], c: [0, 1]}'" in sentence


@pytest.mark.parametrize("experiment", ["kmeans_digits", "concord_digits"])
def test_columns_that_exact_sums_cannot_hold_are_refused_before_the_run(experiment):
    config, data = table(np.array([[600.0, 1], [601.0, -700]]), experiment=experiment)
    config = config.model_copy(update={"encoder": Raw()})
    told = r"^t: b has a value of magnitude 700, .* at most 512; 'data.feature_ranges={a"
    with pytest.raises(DataError, match=told):
        check_range(config, data)
    with pytest.raises(DataError, match=r"column 2 has a value of magnitude 700.*like scales"):
        check_range(config, replace(data, features=()))


def test_other_columns_and_methods_are_not():
    config, data = table(np.array([[512.0, 1], [-512.0, 2]]))
    check_range(config.model_copy(update={"encoder": Raw()}), data)
    large = replace(data, samples=data.samples * 9)
    check_range(config.model_copy(update={"encoder": Raw(unit_length=True)}), large)
    check_range(compose("experiment=fedavg_digits", "encoder=mlp"), large)


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
    assert sentence.startswith(
        "The encoder's weights are random, and this method does not train them"
    )


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
    ("assignments", "clusters", "said"),
    [
        ([3] * 100, 4, "100.0% of the samples are in cluster 3, so"),
        ([3] * 96 + [1] * 4, None, "96.0% of the samples are in cluster 3, so"),
        ([3] * 94 + [1] * 6, None, ""),
        ([-1] * 100, None, ""),
        ([], None, ""),
        ([0, 1, 2] * 9 + [-1], 3, ""),
        ([0, 2, 2] * 9, 3, "1 of 3 clusters is empty (1)."),
        ([0, 2] * 9, 4, "2 of 4 clusters are empty (1, 3)."),
        ([0, 2] * 9, 2000, "1,998 of 2,000 clusters are empty."),
    ],
)
def test_clusters_that_collapsed_or_are_empty_are_told(assignments, clusters, said):
    found = doubtful_clusters(np.array(assignments, np.int64), clusters)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert doubtful_clusters(None, clusters) == ""


def test_the_range_of_streamed_samples_is_left_to_clients():
    config, data = table(np.array([[600.0, 1], [601.0, -700]]))
    streamed = StreamedSamples(shape=(2, 2), dtype=np.dtype(np.float32), read=lambda rows: 1 / 0)
    check_range(config.model_copy(update={"encoder": Raw()}), replace(data, samples=streamed))
