"""Dense clusters of prototypes: what is an outlier, and how far a cluster reaches."""

import pytest
import torch

from coterie.clustering.dense_prototypes import dense_clusters
from coterie.clustering.lattice import off_lattice, on_lattice
from coterie.errors import RunError
from coterie.networks.prototypes import BoundedPrototypes


@pytest.fixture
def found():
    """Two groups of 20 prototypes; one of the first stands for samples far apart, one is lost."""
    drawn = torch.randn(41, 3, generator=torch.Generator().manual_seed(0)).double() / 4
    drawn[20:40] += 8.0
    drawn[40] = 30.0
    counts, scatter = torch.full((41,), 4.0).double(), torch.full((41,), 1.0).double()
    counts[1], scatter[:3] = 40.0, torch.tensor([4 * 9.1 / 4, 40.0, 4 * 8.9 / 4]).double()
    return dense_clusters(on_lattice(drawn), counts, scatter)


def test_lost_prototypes_and_those_of_samples_far_apart_are_of_outliers(found):
    members = found["members"].argmax(dim=1)
    assert found["members"].shape == (41, 3)
    assert (members[0], members[40]) == (2, 2)
    first, second = members[1:20], members[20:40]
    assert len(first.unique()) == len(second.unique()) == 1
    assert {int(first[0]), int(second[0])} == {0, 1}


def test_a_cluster_reaches_three_times_as_far_as_its_samples_lie_from_prototypes(found):
    head = BoundedPrototypes(**found)
    middle = off_lattice(found["points"][20:40]).double()
    side = middle[middle[:, 0].argmax()]
    step = torch.tensor([1.0, 0.0, 0.0]).double()
    probabilities = head(torch.stack([side + 1.49 * step, side + 1.51 * step, -40 * step]))
    own = int(found["members"][25].argmax())
    assert probabilities.argmax(dim=1).tolist() == [own, 2, 2]
    assert probabilities[1].tolist() == [0.0, 0.0, 1.0]
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3))


@pytest.mark.parametrize("many", [3, 60])
def test_no_cluster_is_an_error_that_says_what_to_do(many):
    points = on_lattice(torch.randn(many, 9, generator=torch.Generator().manual_seed(1)).double())
    ones = torch.ones(many).double()
    with pytest.raises(
        RunError, match=rf"no cluster of 30 or more among {many} .*; lower method\.min_cluster"
    ):
        dense_clusters(points, ones, ones, 30)
