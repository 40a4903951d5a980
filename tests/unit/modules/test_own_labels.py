"""A linear classifier fitted to its own labels, in which clusters weigh alike."""

import numpy as np
import torch
from sklearn.linear_model import Ridge

from coterie.clustering.lattice import UNIT, on_lattice
from coterie.modules.exact_sums import PRODUCTS
from coterie.modules.own_labels import (
    COUNTS,
    TARGETS,
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


def test_a_fit_is_the_ridge_regression_in_which_clusters_weigh_alike() -> None:
    points, labels = groups()
    classifier = started(labels.bincount().double(), 4)
    sums = own_sums(points, labels, classifier)
    weights = refitted(sums, classifier["scales"])[WEIGHTS].double() / 2**20
    features = expand(points, 0).double().numpy() / UNIT
    alike = 500 / labels.bincount().double()[labels].numpy()
    penalty = 0.05 * (alike @ features**2).mean()
    model = Ridge(alpha=penalty, fit_intercept=False)
    model.fit(features, np.eye(2)[labels.numpy()], sample_weight=alike)
    assert np.allclose(weights.numpy(), model.coef_.T, atol=2e-3)


def test_its_own_labels_mend_wrong_ones() -> None:
    points, of = groups()
    wrong = of.clone()
    wrong[np.random.default_rng(1).permutation(LARGE)[:60]] = 1
    classifier = started(wrong.bincount().double(), 4)
    for _ in range(5):
        classifier = dict(refitted(own_sums(points, wrong, classifier), classifier["scales"]))
    found = QuadraticClassifier(classifier[WEIGHTS], 4).values(points).argmax(dim=1)
    assert float((found == of).double().mean()) > 0.97
    assert float((wrong == of).double().mean()) == 0.94


def test_sums_of_parts_add_up_within_their_bounds() -> None:
    points, labels = groups()
    classifier = started(labels.bincount().double(), 4)
    classifier = dict(refitted(own_sums(points, labels, classifier), classifier["scales"]))
    whole = own_sums(points, labels, classifier)
    parts = [own_sums(points[i::3], labels[i::3], classifier) for i in range(3)]
    for name, bound in sum_bounds(4, classifier["scales"]).items():
        assert torch.equal(sum(part[name] for part in parts), whole[name])
        lowest, highest = bound.of(len(points))
        assert bool(((whole[name] >= lowest) & (whole[name] <= highest)).all())
    assert whole[COUNTS].sum() == len(points)
    assert whole[PRODUCTS].shape == (15,)
    assert whole[TARGETS].shape == (5, 2)


def test_an_empty_cluster_is_no_error() -> None:
    points, labels = groups()
    classifier = started(torch.tensor([900.0, 100.0, 0.0]).double(), 4)
    after = refitted(own_sums(points, labels, classifier), classifier["scales"])
    assert not after[WEIGHTS][:, 2].any()
