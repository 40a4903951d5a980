"""Plain nearest neighbours as a metric of a run."""

import numpy as np
import torch
from sklearn.neighbors import KNeighborsClassifier

from coterie.config.target import build_target
from coterie.contract.metric import Metric
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


def test_samples_without_a_class_take_no_part() -> None:
    labels = np.array([0] * 10 + [1] * 10 + [-1] * 10)
    samples = torch.cat([torch.eye(2)[0].expand(10, 2), torch.eye(2)[1].expand(20, 2)])
    assert PlainNeighbours(3)(samples, None, labels) == 1.0


def test_each_number_of_neighbours_has_a_name_of_its_own() -> None:
    target = {"target": "coterie.evaluation.plain_neighbours:PlainNeighbours", "k": 1000}
    assert build_target("evaluation.metrics[0]", target, (Metric,)).name == "knn_1000"
