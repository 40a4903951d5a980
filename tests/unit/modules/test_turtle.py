"""TURTLE over clients: the gradients of the paper's objective, and what leaves a client."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from coterie.modules.turtle import Turtle, classifier, gradient_sums
from coterie.networks.lattice_softmax import FINE, LatticeSoftmax, logs_of_two, powers_of_two
from tests.builders.vectors import GROUPS, blobs, clusters, on_vectors, same_partition

LN2 = float(np.log(2))


def drawn(spread: float = 1.0) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    clusters, features = 10, 6
    generator = torch.Generator().manual_seed(0)
    points = torch.randint(-9000, 9000, (50, features), generator=generator, dtype=torch.int32)
    weights = torch.randn(2, features, clusters, generator=generator, dtype=torch.float64)
    labels, classifier = (spread * weights * FINE).round().long()
    shares = torch.full((clusters,), 1 / clusters, dtype=torch.float64)
    return points, {"labels": labels, "classifier": classifier, "shares": shares}


@pytest.mark.parametrize("spread", [1.0, 3.0])  # labels are nearly sure with 3
def test_the_gradient_is_that_of_the_papers_objective(spread: float) -> None:
    points, task = drawn(spread=spread)
    x = points.double() / 2**12
    theta = (task["labels"].double() / FINE * LN2).requires_grad_()
    w, gamma = task["classifier"].double() / FINE * LN2, 10.0
    labels = (x @ theta).softmax(dim=1)
    shares = labels.mean(dim=0)
    sums = gradient_sums(points, {**task, "shares": shares.detach()}, gamma)
    told = torch.nn.functional.cross_entropy(x @ w, labels)
    assert sums["losses"] * LN2 / 50 == pytest.approx(told.item(), rel=1e-3)
    (told - gamma * torch.special.entr(shares).sum()).backward()
    assert torch.allclose(sums["labels"] * LN2 / 50, theta.grad, atol=1e-3)  # the lattice's steps
    assert torch.allclose(sums["targets"], x.T @ labels.detach(), atol=1e-1)


def test_the_classifier_is_a_ridge_regression() -> None:
    generator = np.random.default_rng(0)
    x = np.column_stack([np.ones(200), generator.normal(size=(200, 5))])
    y = generator.dirichlet(np.ones(3), 200)
    scatter, targets = torch.from_numpy(x.T @ x / 200), torch.from_numpy(x.T @ y / 200)
    ridge = Ridge(alpha=200.0, fit_intercept=False).fit(x, y - y.mean(axis=0))
    assert np.allclose(classifier(scatter, targets), 10 * ridge.coef_.T)


def test_powers_of_two_have_nine_digits_and_no_place_in_a_batch() -> None:
    exponents = -torch.rand(1001, dtype=torch.float64) * 50
    found = powers_of_two(exponents)
    assert torch.allclose(found, torch.exp2(exponents), rtol=1e-9, atol=0.0)
    assert torch.equal(powers_of_two(exponents[500:]), found[500:])
    assert powers_of_two(torch.tensor([0.0, -1.0, -5000.0], dtype=torch.float64)).tolist() == [
        1.0,
        0.5,
        2.0**-1000,
    ]


def test_logs_of_two_have_twelve_digits_and_no_place_in_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(100_001, dtype=torch.float64, generator=generator).square()
    found = logs_of_two(values)
    assert torch.allclose(found, values.log2(), rtol=1e-12, atol=1e-12)
    for start in (1, 3, 50_001, 100_000):
        assert torch.equal(logs_of_two(values[start:]), found[start:])
    ends = torch.tensor([1.0, 0.5, 2.0**-60, 10.0], dtype=torch.float64)
    assert logs_of_two(ends).tolist() == [0.0, -1.0, -60.0, pytest.approx(np.log2(10), rel=1e-12)]


def test_probabilities_are_a_softmax_in_bits() -> None:
    points, task = drawn()
    head = LatticeSoftmax(task["labels"])
    expected = (points.double() / 2**12 @ task["labels"].double() / FINE * LN2).softmax(dim=1)
    assert torch.allclose(head.of(points), expected, atol=1e-8)


def test_it_finds_groups_that_no_client_has_more_than_one_of() -> None:
    samples, groups = blobs()
    parts = [np.flatnonzero(groups == group) for group in range(GROUPS)]
    ran = on_vectors(Turtle.Config(clusters=GROUPS, iterations=60), samples, parts)
    assert same_partition(clusters(ran, samples), groups)


def test_a_client_sends_sums_only_and_keeps_its_projected_samples() -> None:
    samples, _ = blobs()
    ran = on_vectors(
        Turtle.Config(clusters=3, components=5, iterations=2, restarts=2),
        samples,
        [np.arange(len(samples))],
    )
    first, second, *others = ran.spy.tasks
    assert set(first.outcome.up) == {"moments"}
    assert second.outcome.up["scatter"].tensors["scatter"].shape == (6, 6)
    assert len(others) == 2
    for task in others:
        shapes = {k: tuple(v.shape) for k, v in task.outcome.up["sums"].tensors.items()}
        assert shapes == {"labels": (2, 6, 3), "targets": (2, 6, 3), "losses": (2,)}
        assert not task.outcome.gathered
        assert task.outcome.state is not None
        assert task.outcome.state["points"].shape == (len(samples), 5)
