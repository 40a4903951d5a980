"""Undirected, static graphs of devices that exchange, as pairs of client numbers."""

from collections.abc import Iterable

import numpy as np

from coterie.errors import ConfigError

Edges = tuple[tuple[int, int], ...]
"""Sorted pairs (i, j) with i < j."""


def geometric_graph(clients: int, degree: float, seed: int) -> Edges:
    """Draw a random geometric graph with a given mean degree.

    Devices are uniform points in the unit square; two are linked if they are closer than a radius.
    The radius is such that there are ⌊clients · degree / 2⌉ links, so the mean degree is exact to
    within 1/clients. The graph need not be connected.

    Args:
        clients: Number of devices.
        degree: Mean number of neighbours; from clients − 1 on, all devices are linked.
        seed: Seed of the points.
    """
    points = np.random.default_rng(seed).random((clients, 2))
    first, second = np.triu_indices(clients, k=1)
    distances = np.linalg.norm(points[first] - points[second], axis=1)
    count = min(round(clients * degree / 2), len(distances))
    nearest = np.argsort(distances, kind="stable")[:count]
    return tuple(sorted((int(first[n]), int(second[n])) for n in nearest))


def ring(clients: int) -> Edges:
    """Link each device to the next one, and the last to the first."""
    pairs = ((client, (client + 1) % clients) for client in range(clients))
    return tuple(sorted({(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]}))


def complete_graph(clients: int) -> Edges:
    """Link every device to every other."""
    return tuple((i, j) for i in range(clients) for j in range(i + 1, clients))


def listed_graph(clients: int, pairs: Iterable[tuple[int, int]]) -> Edges:
    """Return the graph of a list of links; directions and repetitions do not matter.

    Raises:
        ConfigError: If a link is not between two different existing devices.
    """
    edges = set()
    for i, j in pairs:
        if i == j or not (0 <= i < clients and 0 <= j < clients):
            raise ConfigError(
                f"edges: [{i}, {j}] is not a link among {clients} clients; name two different ones "
                f"from 0 to {clients - 1}."
            )
        edges.add((min(i, j), max(i, j)))
    return tuple(sorted(edges))


def neighbourhoods(edges: Iterable[tuple[int, int]]) -> dict[int, frozenset[int]]:
    """Return each device's neighbours, for the devices that have any."""
    found: dict[int, set[int]] = {}
    for i, j in edges:
        found.setdefault(i, set()).add(j)
        found.setdefault(j, set()).add(i)
    return {device: frozenset(around) for device, around in found.items()}


def neighbours(edges: Iterable[tuple[int, int]], client: int) -> tuple[int, ...]:
    """Return the neighbours of a device, ascending."""
    return tuple(sorted(neighbourhoods(edges).get(client, ())))
