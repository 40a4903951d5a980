"""Alignment, uniformity and mixing: parity with slow versions, closed forms, faults."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from coterie.errors import DataError
from coterie.evaluation import unsupervised_metrics
from coterie.evaluation.unsupervised_metrics import (
    alignment,
    mixing,
    selection_score,
    uniformity,
)

TAU = 0.2


@pytest.fixture
def clients():
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(n, 5, generator=draw, dtype=torch.float64) for n in (1, 4, 9)]


def slow_alignment(pairs):
    means = [
        sum(float(cosine_similarity(a, b, dim=0)) for a, b in zip(x, view, strict=True)) / len(x)
        for x, view in pairs
    ]
    return sum(means) / len(means)


def slow_uniformity(clients, tau, anchors=None):
    means = []
    for x, chosen in zip(clients, anchors or clients, strict=True):
        logs = [
            math.log(sum(math.exp(float(cosine_similarity(a, b, dim=0)) / tau) for b in x) / len(x))
            for a in (x if anchors is None else x[chosen])
        ]
        means.append(sum(logs) / len(logs))
    return -sum(means) / len(means)


def slow_mixing(x, assignments):
    unit = [row / row.norm() for row in x]
    worst = -math.inf
    for g in set(assignments.tolist()):
        mean = sum(row for row, own in zip(unit, assignments, strict=True) if own == g)
        mean = mean / mean.norm()
        for row, own in zip(unit, assignments, strict=True):
            if own != g:
                worst = max(worst, float(mean @ row))
    return worst


def test_parity_with_the_slow_versions(clients, monkeypatch):
    views = [x + 0.3 * torch.randn_like(x) for x in clients]
    pairs = list(zip(clients, views, strict=True))
    assert alignment(pairs) == pytest.approx(slow_alignment(pairs), abs=1e-6)
    assert uniformity(clients) == pytest.approx(slow_uniformity(clients, TAU), abs=1e-5)
    assert uniformity(clients, 1.0) == pytest.approx(slow_uniformity(clients, 1.0), abs=1e-6)
    monkeypatch.setattr(unsupervised_metrics, "_BLOCK", 20)  # two rows of nine at a time
    assert uniformity(clients) == pytest.approx(slow_uniformity(clients, TAU), abs=1e-5)
    chosen = [np.array(rows) for rows in ([0], [3, 1], [0, 5, 8])]
    expected = slow_uniformity(clients, TAU, chosen)
    assert uniformity(clients, anchors=chosen) == pytest.approx(expected, abs=1e-5)
    x, assignments = clients[2], np.array([0, 0, 4, 4, 7, 7, 7, 0, 4])
    assert mixing(x, assignments) == pytest.approx(slow_mixing(x, assignments), abs=1e-6)


def test_collapse():
    same = torch.ones(6, 3)
    assert alignment([(same, 2 * same)]) == pytest.approx(1.0, abs=1e-6)
    assert uniformity([same]) == pytest.approx(-1 / TAU, abs=1e-5)
    assert selection_score(1.0, -5.0) == 0.0
    assert mixing(same, np.array([0, 0, 0, 1, 1, 1])) == pytest.approx(1.0, abs=1e-6)


def test_orthogonal_representations():
    x, n = torch.eye(4), 4
    expected = -math.log((math.exp(1 / TAU) + (n - 1)) / n)
    assert uniformity([x]) == pytest.approx(expected, abs=1e-6)
    assert mixing(x, np.arange(4)) == 0.0
    assert alignment([(x, x.roll(1, dims=0))]) == 0.0
    assert alignment([(x, -x)]) == -1.0
    halves = mixing(x, np.array([0, 0, 1, 1]))
    assert halves == 0.0  # means (e1+e2)/√2 and (e3+e4)/√2


def test_clients_count_alike_whatever_their_size():
    one, many = torch.ones(1, 2), torch.tensor([[1.0, 0.0]] * 9)
    assert alignment([(one, one), (many, -many)]) == pytest.approx(0.0, abs=1e-6)
    apart = torch.eye(2).repeat(10, 1)
    assert uniformity([one, apart]) == pytest.approx(
        (uniformity([one]) + uniformity([apart])) / 2, abs=1e-6
    )


def test_lengths_and_names_of_clusters_do_not_matter(clients):
    x, assignments = clients[2], np.array([0, 1, 2, 0, 1, 2, 0, 1, 2])
    assert mixing(x * torch.rand(9, 1), assignments) == pytest.approx(mixing(x, assignments))
    assert mixing(x, np.array([5, 9, 3])[assignments]) == mixing(x, assignments)
    assert uniformity([7 * x]) == pytest.approx(uniformity([x]), abs=1e-6)


def test_one_cluster_has_no_mixing():
    assert math.isnan(mixing(torch.eye(3), np.zeros(3, dtype=np.int64)))


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: alignment([]), r"representations of shapes \[\]: give \(n, d\) with n ≥ 1"),
        (lambda: uniformity([torch.zeros(0, 3)]), r"shapes \[\(0, 3\)\]: give \(n, d\)"),
        (lambda: alignment([(torch.eye(3), torch.eye(2, 3))]), r"\(3, 3\) and of views \(2, 3\)"),
        (lambda: uniformity([torch.eye(3)], 0.0), "temperature=0.0: it must be positive"),
        (lambda: mixing(torch.eye(3), np.zeros(2, np.int64)), "2 assignments for 3 samples: give"),
    ],
)
def test_what_does_not_fit_is_refused(call, sentence):
    with pytest.raises(DataError, match=sentence):
        call()
