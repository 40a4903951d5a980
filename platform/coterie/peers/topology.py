"""Graphs of devices: who exchanges with whom. Undirected and static, as pairs of client numbers."""

from collections.abc import Iterable

import numpy as np

from coterie.errors import ConfigError

Edges = tuple[tuple[int, int], ...]
"""Sorted pairs (i, j) with i < j."""


def geometric_graph(clients: int, degree: float, seed: int) -> Edges:
    """A random geometric graph of a wanted mean degree.

    The devices are uniform points of the unit square, and two are linked if they are closer than a
    radius. Of all radii the one is taken that gives ⌊clients · degree / 2⌉ links, so the mean
    degree is the wanted one to within 1/clients. Nothing keeps the graph connected.

    Args:
        clients: How many devices.
        degree: Mean number of neighbours; from clients − 1 on, all are linked.
        seed: Of the points.
    """
    points = np.random.default_rng(seed).random((clients, 2))
    first, second = np.triu_indices(clients, k=1)
    distances = np.linalg.norm(points[first] - points[second], axis=1)
    count = min(round(clients * degree / 2), len(distances))
    nearest = np.argsort(distances, kind="stable")[:count]
    return tuple(sorted((int(first[n]), int(second[n])) for n in nearest))


def ring(clients: int) -> Edges:
    """Each device linked to the next one, the last to the first."""
    pairs = ((client, (client + 1) % clients) for client in range(clients))
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))


def complete_graph(clients: int) -> Edges:
    """Every device linked to every other."""
    return tuple((i, j) for i in range(clients) for j in range(i + 1, clients))


def listed_graph(clients: int, pairs: Iterable[tuple[int, int]]) -> Edges:
    """The graph of a list of links, each in either direction and any number of times.

    Raises:
        ConfigError: If a link is not between two different devices that exist.
    """
    edges = set()
    for i, j in pairs:
        if i == j or not (0 <= i < clients and 0 <= j < clients):
            raise ConfigError(
                f"edges: [{i}, {j}] is no link among {clients} clients; name two different ones "
                f"from 0 to {clients - 1}."
            )
        edges.add((min(i, j), max(i, j)))
    return tuple(sorted(edges))


def neighbours(edges: Iterable[tuple[int, int]], client: int) -> tuple[int, ...]:
    """The devices that one is linked to, ascending."""
    pairs = [pair for pair in edges if client in pair]
    return tuple(sorted(i + j - client for i, j in pairs))
