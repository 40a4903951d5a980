"""Graphs of devices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigError
from coterie.peers.topology import (
    complete_graph,
    geometric_graph,
    listed_graph,
    neighbours,
    ring,
)


def test_the_papers_graph_has_the_wanted_mean_degree() -> None:
    for seed in range(20):
        edges = geometric_graph(10, 7.0, seed)
        assert sum(len(neighbours(edges, client)) for client in range(10)) / 10 == 7.0
    assert len(geometric_graph(10, 2.0, 0)) == 10
    assert geometric_graph(10, 7.0, 0) != geometric_graph(10, 7.0, 1)


@given(clients=st.integers(1, 30), degree=st.floats(0.1, 40), seed=st.integers(0, 2**62))
def test_a_geometric_graph_is_symmetric_simple_and_of_one_radius(
    clients: int, degree: float, seed: int
) -> None:
    edges = geometric_graph(clients, degree, seed)
    assert edges == geometric_graph(clients, degree, seed)
    assert (
        len(set(edges))
        == len(edges)
        == min(round(clients * degree / 2), clients * (clients - 1) // 2)
    )
    assert all(0 <= i < j < clients for i, j in edges)
    points = np.random.default_rng(seed).random((clients, 2))
    length = {
        (i, j): np.linalg.norm(points[i] - points[j])
        for i in range(clients)
        for j in range(i + 1, clients)
    }
    within = max((length[pair] for pair in edges), default=0.0)
    assert all(length[pair] >= within for pair in length.keys() - set(edges))


def test_neighbours_are_mutual() -> None:
    edges = geometric_graph(12, 5.0, 3)
    for i in range(12):
        assert i not in neighbours(edges, i)
        for j in neighbours(edges, i):
            assert i in neighbours(edges, j)


def test_ring_and_complete_graph() -> None:
    assert ring(4) == ((0, 1), (0, 3), (1, 2), (2, 3))
    assert neighbours(ring(4), 0) == (1, 3)
    assert (ring(1), ring(2), ring(3)) == ((), ((0, 1),), ((0, 1), (0, 2), (1, 2)))
    assert complete_graph(4) == ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    assert neighbours(complete_graph(4), 2) == (0, 1, 3)
    assert geometric_graph(4, 3.0, 5) == geometric_graph(4, 9.0, 5) == complete_graph(4)


def test_a_list_of_links_in_any_order() -> None:
    assert listed_graph(4, [(3, 1), (1, 3), (0, 1)]) == ((0, 1), (1, 3))
    assert neighbours(listed_graph(4, [(3, 1)]), 2) == ()


@pytest.mark.parametrize("pair", [(0, 4), (2, 2), (-1, 0)])
def test_a_link_to_nobody_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ConfigError, match=r"not a link among 4 clients; name two different ones"):
        listed_graph(4, [(0, 1), pair])
