"""Plain nearest neighbours as a metric of a run."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from coterie.config.schema import EvaluationConfig
from coterie.config.target import build_target
from coterie.contract.metric import Metric
from coterie.errors import ConfigError, DataError
from coterie.evaluation.custom_metrics import build_metrics
from coterie.evaluation.plain_neighbours import PlainNeighbours


def test_it_is_scikit_learns_vote_on_every_fifth_sample() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 400)
    samples = rng.normal(size=(400, 8)) + np.eye(8)[labels]
    unit = samples / np.linalg.norm(samples, axis=1, keepdims=True)
    asked = np.arange(400) % 5 == 0
    reference = KNeighborsClassifier(7).fit(unit[~asked], labels[~asked])
    expected = reference.score(unit[asked], labels[asked])
    found = PlainNeighbours(7)(torch.from_numpy(samples), None, labels)
    assert abs(found - expected) <= 2 / asked.sum()  # two ties may go another way


def test_the_last_samples_are_asked_by_euclidean_distance() -> None:
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 4, 300)
    samples = (rng.normal(size=(300, 8)) + np.eye(8)[labels]) * rng.uniform(0.1, 3, (300, 1))
    apart = np.linalg.norm(samples[200:, None] - samples[None, :200], axis=2)
    votes = np.eye(4)[labels[np.argsort(apart, axis=1)[:, :9]]].sum(axis=1)
    expected = (votes.argmax(axis=1) == labels[200:]).mean()
    metric = PlainNeighbours(9, distance="euclidean", last=100)
    assert metric(torch.from_numpy(samples), None, labels) == expected
    assert PlainNeighbours(9, last=100)(torch.from_numpy(samples), None, labels) != expected


def test_half_precision_is_measured_too() -> None:
    x, y = torch.randn(40, 3), np.arange(40) % 2
    metric = PlainNeighbours(3, "euclidean", last=8)
    assert metric(x.bfloat16(), None, y) == metric(x.bfloat16().float(), None, y)


def test_two_metrics_of_one_name_are_refused() -> None:
    section = {"target": "coterie.evaluation.plain_neighbours:PlainNeighbours", "k": 5}
    twice = EvaluationConfig(metrics=(section, {**section, "distance": "euclidean"}))
    with pytest.raises(ConfigError, match=r"evaluation.metrics\[1\]: custom/knn_5 is also the na"):
        build_metrics(twice)
    assert len(build_metrics(EvaluationConfig(metrics=(section, {**section, "k": 7})))) == 2


def test_samples_without_a_class_take_no_part() -> None:
    labels = np.array([0] * 10 + [1] * 10 + [-1] * 10)
    samples = torch.cat([torch.eye(2)[0].expand(10, 2), torch.eye(2)[1].expand(20, 2)])
    assert PlainNeighbours(3)(samples, None, labels) == 1.0


def test_each_number_of_neighbours_has_a_name_of_its_own() -> None:
    target = {"target": "coterie.evaluation.plain_neighbours:PlainNeighbours", "k": 1000}
    assert build_target("evaluation.metrics[0]", target, (Metric,)).name == "knn_1000"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"k": 3, "distance": "euclidian"}, "distance=euclidian: choose cosine or euclidean"),
        ({"k": 0}, "k=0 with last=None: both have to be 1 or more"),
        ({"k": 3, "last": 0}, "k=3 with last=0: both"),
    ],
)
def test_arguments_out_of_range_are_refused_before_the_run(arguments, reason) -> None:
    target = {"target": "coterie.evaluation.plain_neighbours:PlainNeighbours", **arguments}
    with pytest.raises(ConfigError, match=reason):
        build_target("evaluation.metrics[0]", target, (Metric,))


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
def test_somebody_has_to_be_left_to_answer(distance) -> None:
    with pytest.raises(DataError, match=r"knn_3: 10 of 10 samples with a class are"):
        PlainNeighbours(3, distance, last=10)(torch.eye(10), None, np.arange(10))
