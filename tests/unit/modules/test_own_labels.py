"""A linear classifier fitted to its own labels, in which clusters weigh alike."""

import numpy as np
import torch
from sklearn.linear_model import Ridge

from coterie.clustering.lattice import UNIT, on_lattice
from coterie.modules.exact_sums import PRODUCTS
from coterie.modules.own_labels import (
    COUNTS,
    OWN,
    OWN_SUMS,
    TARGETS,
    TOGETHER,
    WEIGHTS,
    own_sums,
    refitted,
    started,
    sum_bounds,
)
from coterie.networks.quadratic import QuadraticClassifier, expand

LARGE, SMALL = 900, 100


def groups() -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors of a large and a small group, on the lattice, and the group of each."""
    noise = np.random.default_rng(0).normal(scale=0.25, size=(LARGE + SMALL, 4))
    of = np.repeat([0, 1], [LARGE, SMALL])
    points = noise + np.eye(4)[of]
    unit = points / np.linalg.norm(points, axis=1, keepdims=True)
    return on_lattice(torch.from_numpy(unit)), torch.from_numpy(of)


def fit(
    points: torch.Tensor, *labels: torch.Tensor, rounds: int = 1, refits: int = 20
) -> dict[str, torch.Tensor]:
    """The classifiers after some rounds, each from its first labels."""
    first = torch.stack(labels)
    counts = torch.stack([each.bincount(minlength=2).double() for each in labels])
    classifiers = started(counts, points.shape[1])[OWN]
    for number in range(1, 1 + rounds):
        sums = own_sums(points, lambda: first, classifiers)
        classifiers = refitted(sums, classifiers["scales"], number, refits)[OWN]
    return dict(classifiers)


def test_a_fit_is_the_ridge_regression_in_which_clusters_weigh_alike() -> None:
    points, labels = groups()
    weights = fit(points, labels)[WEIGHTS][0].double() / 2**20
    features = expand(points, 0).double().numpy() / UNIT
    alike = 500 / labels.bincount().double()[labels].numpy()
    penalty = 0.05 * (alike @ features**2).mean()
    model = Ridge(alpha=penalty, fit_intercept=False)
    model.fit(features, np.eye(2)[labels.numpy()], sample_weight=alike)
    assert np.allclose(weights.numpy(), model.coef_.T, atol=2e-3)


def with_errors(of: torch.Tensor) -> torch.Tensor:
    wrong = of.clone()
    wrong[np.random.default_rng(1).permutation(LARGE)[:60]] = 1
    return wrong


def test_its_own_labels_correct_wrong_ones() -> None:
    points, of = groups()
    wrong = with_errors(of)
    weights = fit(points, wrong, rounds=5)[WEIGHTS][0]
    found = QuadraticClassifier(weights, 4).values(points).argmax(dim=1)
    assert float((found == of).double().mean()) > 0.97
    assert float((wrong == of).double().mean()) == 0.94


def test_each_start_is_what_it_is_alone() -> None:
    points, of = groups()
    across = (points[:, 3] > 0).long()
    both = fit(points, with_errors(of), across, rounds=2)
    for place, labels in enumerate((with_errors(of), across)):
        alone = fit(points, labels, rounds=2)
        assert all(torch.equal(both[name][place], alone[name][0]) for name in both)


def test_the_start_goes_on_whose_labels_a_ridge_regression_explains_best() -> None:
    points, of = groups()
    across = (points[:, 3] > 0).long()
    features = expand(points, 0).double().numpy() / UNIT
    explained = []
    for start in (across, of):
        before = fit(points, start, rounds=TOGETHER - 1)
        labels = QuadraticClassifier(before[WEIGHTS][0], 4).values(points).argmax(dim=1)
        alike = before["scales"][0][labels].numpy() ** 2
        model = Ridge(alpha=0.05 * (alike @ features**2).mean(), fit_intercept=False)
        one_hot = np.eye(2)[labels.numpy()]
        model.fit(features, one_hot, sample_weight=alike)
        explained.append((alike[:, None] * one_hot * (features @ model.coef_.T)).sum())
    best = int(np.argmax(explained))
    for refits, rounds in ((20, TOGETHER), (3, 3)):
        found = fit(points, across, of, rounds=rounds, refits=refits)
        alone = fit(points, (across, of)[best], rounds=rounds)
        assert len(found[WEIGHTS]) == 1
        assert torch.equal(found[WEIGHTS], alone[WEIGHTS])
    assert len(fit(points, across, of, rounds=TOGETHER - 1)[WEIGHTS]) == 2


def test_sums_of_parts_add_up_within_their_bounds() -> None:
    points, labels = groups()
    classifiers = fit(points, labels, 1 - labels)

    def first() -> torch.Tensor:
        raise AssertionError("first labels are sought, and the classifiers have labels")

    whole = own_sums(points, first, classifiers)
    parts = [own_sums(points[i::3], first, classifiers) for i in range(3)]
    for name, bound in sum_bounds(4, classifiers["scales"]).items():
        assert torch.equal(sum(part[name] for part in parts), whole[name])
        lowest, highest = bound.of(len(points))
        assert bool(((whole[name] >= lowest) & (whole[name] <= highest)).all())
    empty = started(torch.ones(2, 2).double(), 4)[OWN_SUMS]
    assert {name: value.shape for name, value in empty.items()} == {
        PRODUCTS: (2, 15),
        TARGETS: (2, 5, 2),
        COUNTS: (2, 2),
    }
    assert all(whole[name].shape == value.shape for name, value in empty.items())
    assert whole[COUNTS].sum() == 2 * len(points)


def test_an_empty_cluster_is_no_error() -> None:
    points, labels = groups()
    classifiers = started(torch.tensor([[900.0, 100.0, 0.0]]).double(), 4)[OWN]
    sums = own_sums(points, lambda: labels[None], classifiers)
    after = refitted(sums, classifiers["scales"], 1, 20)[OWN]
    assert not after[WEIGHTS][0, :, 2].any()
