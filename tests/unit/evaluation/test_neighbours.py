import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from coterie.config.schema import EvaluationConfig
from coterie.errors import DataError
from coterie.evaluation import neighbours
from coterie.evaluation.neighbours import knn_accuracy
from coterie.evaluation.probes import Probes


@pytest.fixture(scope="module")
def data():
    """Digits with much noise, so that votes are close and the weights matter."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    x = x / 16 + rng.normal(0, 0.6, x.shape)
    order = rng.permutation(len(x))
    x = torch.tensor(x[order], dtype=torch.float32)
    y = torch.tensor(y[order])
    return x[:1200], y[:1200], x[1200:], y[1200:]


def scikit_learns(data, k, weights):
    train_x, train_y, test_x, test_y = (part.numpy() for part in data)
    model = KNeighborsClassifier(k, weights=weights, metric="cosine", algorithm="brute")
    return model.fit(train_x, train_y).score(test_x, test_y)


@pytest.mark.parametrize("k", [1, 3, 20, 200])
def test_uniform_votes_are_scikit_learns(data, k):
    ours = knn_accuracy(*data, classes=10, k=k, weighting="uniform")
    assert 0.3 < ours < 0.98
    assert ours == pytest.approx(scikit_learns(data, k, "uniform"), abs=1e-12)


@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"k": 3},
        {"k": 20, "weighting": "uniform"},
    ],
)
def test_the_config_says_how_neighbours_vote(data, keys):
    config = EvaluationConfig(linear_probe=False, **{f"knn_{key}": keys[key] for key in keys})
    x, y, test_x, test_y = data
    scores = Probes(config=config, classes=10, seed=0).scores(
        (x, test_x), (y.numpy(), test_y.numpy())
    )
    assert scores == {"knn": {"acc": knn_accuracy(*data, classes=10, **keys)}}
    if keys:
        assert scores["knn"]["acc"] != knn_accuracy(*data, classes=10)


@pytest.mark.parametrize(("k", "temperature"), [(20, 0.1), (200, 0.1), (200, 0.5)])
def test_exponential_votes_are_scikit_learns(data, monkeypatch, k, temperature):
    monkeypatch.setattr(neighbours, "TEMPERATURE", temperature)
    ours = knn_accuracy(*data, classes=10, k=k)
    expected = scikit_learns(data, k, lambda distance: np.exp((1 - distance) / temperature))
    assert ours == pytest.approx(expected, abs=1e-12)


def test_the_defaults_are_200_neighbours_at_temperature_a_tenth(data):
    assert neighbours.TEMPERATURE == 0.1
    named = knn_accuracy(*data, classes=10, k=200, weighting="exp")
    assert knn_accuracy(*data, classes=10) == named
    assert named != knn_accuracy(*data, classes=10, weighting="uniform")


def test_a_close_neighbour_outvotes_two_far_ones_only_if_weighted(monkeypatch):
    train = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]])
    y = torch.tensor([0, 1, 1])
    query, truth = torch.tensor([[3.0, 1.0]]), torch.tensor([0])
    assert knn_accuracy(train, y, query, truth, classes=2, k=3) == 1.0
    assert knn_accuracy(train, y, query, truth, classes=2, k=3, weighting="uniform") == 0.0
    # exp(c₀/τ) = 2 exp(c₁/τ) at τ = (c₀ − c₁)/log 2: the vote tasks just there.
    task = (3 - 1) / math.sqrt(10) / math.log(2)
    for temperature, expected in ((0.99 * task, 1.0), (1.01 * task, 0.0)):
        monkeypatch.setattr(neighbours, "TEMPERATURE", temperature)
        assert knn_accuracy(train, y, query, truth, classes=2, k=3) == expected


def test_length_does_not_matter_only_direction(data):
    train_x, train_y, test_x, test_y = data
    scale = torch.linspace(0.1, 50, len(train_x))[:, None]
    scaled = knn_accuracy(train_x * scale, train_y, test_x * 7, test_y, classes=10, k=20)
    assert scaled == pytest.approx(knn_accuracy(*data, classes=10, k=20), abs=0.004)


def test_k_is_clipped_to_the_number_of_training_points():
    train, y = torch.eye(3), torch.tensor([0, 1, 1])
    assert knn_accuracy(train, y, train, y, classes=2, k=500, weighting="uniform") == 2 / 3


def test_blocks_change_nothing(data, monkeypatch):
    whole = knn_accuracy(*data, classes=10, k=20)
    sizes = []
    original = neighbours.votes
    monkeypatch.setattr(neighbours, "BLOCK", 1200 * 7)
    monkeypatch.setattr(
        neighbours, "votes", lambda cos, *rest: sizes.append(len(cos)) or original(cos, *rest)
    )
    assert knn_accuracy(*data, classes=10, k=20) == whole
    assert sizes == [7] * 85 + [2]


def test_a_small_temperature_does_not_overflow(monkeypatch):
    monkeypatch.setattr(neighbours, "TEMPERATURE", 1e-4)
    train, y = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]), torch.tensor([1, 0, 0])
    query = torch.tensor([[1.0, 0.01]])
    # If both classes had infinite votes, class 0 would win.
    assert knn_accuracy(train, y, query, torch.tensor([1]), classes=2, k=3) == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test_x": torch.full((3, 3), math.inf)}, "3 of 3 test features are not finite"),
        ({"test_x": torch.zeros(0, 3), "test_y": torch.zeros(0).long()}, "test features"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    x, y = torch.eye(3), torch.tensor([0, 1, 1])
    given = {"train_x": x, "train_y": y, "test_x": x, "test_y": y, "classes": 2}
    with pytest.raises(DataError, match=message):
        knn_accuracy(**{**given, **change})
