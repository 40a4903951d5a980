"""What a page of clusters shows: the ends of each, pairs that touch, halves, maps of prototypes."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.contract.clusterer import OUTLIER
from coterie.run.cluster_views import (
    Assigned,
    add_halves,
    examined,
    pairs_of,
    prototype_map,
    views_of,
)

ROWS = np.arange(100, 160)
ASSIGNED = Assigned(
    ROWS,
    np.repeat(np.array([0, 1, 3]), [30, 27, 3]),
    np.linspace(1.0, 0.4, 60, dtype=np.float32),
    4,
)


def test_the_ends_of_a_cluster_are_its_most_and_least_certain_and_none_twice():
    views = {view.key: view for view in views_of(ASSIGNED, 4)}
    assert [view.size for view in views.values()] == [30, 27, 0, 3]
    assert views["0"].certain.tolist() == [100, 101, 102, 103]
    assert views["0"].uncertain.tolist() == [129, 128, 127, 126]
    assert (views["3"].certain.tolist(), views["3"].uncertain.tolist()) == ([157, 158, 159], [])


def test_as_many_of_each_cluster_are_looked_at_and_the_seed_says_which():
    places = examined(ASSIGNED, 30, 7)
    assert np.bincount(ASSIGNED.clusters[places]).tolist() == [10, 10, 0, 3]
    assert np.array_equal(places, examined(ASSIGNED, 30, 7))
    assert not np.array_equal(places, examined(ASSIGNED, 30, 8))
    assert examined(ASSIGNED, 1000, 7).tolist() == list(range(60))


def test_pairs_touch_by_what_may_be_the_others_samples():
    places = np.arange(60)
    p = torch.zeros(60, 4)
    p[:30, 0], p[30:57, 1], p[57:, 3] = 1.0, 1.0, 1.0
    p[29], p[57] = torch.tensor([0.6, 0.4, 0, 0]), torch.tensor([0, 0.3, 0, 0.7])
    pairs = pairs_of(ASSIGNED, places, p)
    assert [(pair.first, pair.second) for pair in pairs] == [("1", "3"), ("0", "1")]
    assert [pair.share for pair in pairs] == pytest.approx([0.3 / 3, 0.4 / 30])
    assert [pair.rows[0] for pair in pairs] == [157, 129]


def test_halves_are_those_of_two_groups_within_a_cluster():
    embedding = torch.zeros(60, 3)
    embedding[:10, 0], embedding[10:30, 0] = 5.0, -5.0
    embedding += 0.1 * torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    embedding[30:57] = 1.0  # all the same: nothing to split
    views = views_of(ASSIGNED, 4)
    add_halves(views, ASSIGNED, np.arange(60), embedding, 0)
    split, same, none, few = views
    assert sorted(half.share for half in split.halves) == pytest.approx([1 / 3, 2 / 3])
    assert (same.halves, none.halves, few.halves) == ([], [], [])
    direction = torch.tensor(split.plane.direction, dtype=torch.float64)
    for half, beyond in zip(split.halves, (False, True), strict=True):
        inside = embedding[torch.from_numpy(half.rows) - 100].double() @ direction
        assert bool(((inside > split.plane.threshold) == beyond).all())


def test_a_map_of_prototypes_says_which_clusters_touch():
    points = torch.tensor([[0, 0], [1, 0], [3, 0], [4, 0], [100, 0], [101, 0]], dtype=torch.int32)
    counts = torch.tensor([4.0, 1, 1, 1, 1, 1], dtype=torch.float64)
    clusters = torch.tensor([0, 0, 1, 0, 2, 2])
    found = prototype_map(points, counts, clusters, 3)
    assert found.sizes == {"0": (6, 3), "1": (1, 1), "2": (2, 2)}
    assert [(pair.first, pair.second) for pair in found.pairs] == [("0", "1")]
    assert found.pairs[0].share == 1.0  # the only one of cluster 1 is next to cluster 0
    assert found.radii.max() == found.radii[0] == 1.0
    assert found.places.min() == 0.0
    assert found.places.max() == 1.0


def test_outliers_are_shown_last_and_touch_no_cluster():
    clusters = np.where(ASSIGNED.clusters == 3, OUTLIER, ASSIGNED.clusters)
    given = replace(ASSIGNED, clusters=clusters, number=2, outliers=True)
    views = views_of(given, 4)
    assert [(view.key, view.size) for view in views] == [("0", 30), ("1", 27), ("-1", 3)]
    p = torch.zeros(60, 3)
    p[:30, 0], p[30:57, 1], p[57:] = 1.0, 1.0, torch.tensor([0.4, 0.3, 0.3])
    p[29] = torch.tensor([0.6, 0.4, 0.0])
    pairs = pairs_of(given, np.arange(60), p)
    assert [(pair.first, pair.second) for pair in pairs] == [("0", "1")]
    assert pairs[0].rows[0] == 129
    embedding = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    add_halves(views, given, np.arange(60), embedding, 0)
    assert [bool(view.halves) for view in views] == [True, True, False]


def test_prototypes_of_outliers_have_their_place_and_touch_no_cluster():
    points = torch.tensor([[0.0, 0], [0, 1], [4, 4], [4, 5], [4, 4.1]])
    clusters = torch.tensor([0, 0, 1, 1, OUTLIER])
    found = prototype_map(points, torch.tensor([3.0, 3, 4, 4, 9]), clusters, 2)
    assert found.sizes == {"0": (6, 2), "1": (8, 2), "-1": (9, 1)}
    assert found.pairs == []
    assert len(found.places) == 5
