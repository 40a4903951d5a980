"""Exact federated k-means: Lloyd's algorithm on all clients' samples, by exact sums.

Dhillon and Modha, "A Data-Clustering Algorithm on Distributed Memory Multiprocessors" (2000), after
Lloyd's algorithm. Each round clients send, for every centroid, the sum and the number of their
nearest samples. The centroids are those of k-means on all samples in
one place, to the bit, however the samples are split.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Int32
from pydantic import PositiveInt
from torch import Tensor, nn

from coterie.clustering.exact_kmeans import ClusterSums, moved
from coterie.clustering.lattice import LIMIT, off_lattice, sums_of_starts
from coterie.contract import (
    Client,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
    WeightedUpdate,
    summed,
)
from coterie.contract.phase import Json
from coterie.modules.exact_sums import (
    MOMENTS,
    SUMS,
    ExactSumsConfig,
    OnExactSums,
    cluster_bounds,
    draws,
    moment_sums,
    moments_of,
    once,
    sums_phase,
)
from coterie.modules.sent_centroids import CENTROIDS
from coterie.networks.branch import cluster_count
from coterie.networks.heads import Centroids

MOVING, BEST = "moving", "best"


class KMeans(OnExactSums):
    """Exact federated k-means: the centroids of all samples, however they are split."""

    widest = 1024
    private = "coterie.modules.noisy_lloyd:PrivateKMeans"

    class Config(ExactSumsConfig):
        """k-means' configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"iterations"})

        clusters: PositiveInt | None = None
        """Number of clusters k; by default the data's number of classes."""
        restarts: PositiveInt = 10
        """Starts of k-means, which run at the same time; the one of least inertia is taken."""
        iterations: PositiveInt = 100
        """Maximum number of iterations; k-means ends earlier once no centroid moves."""

    def __init__(self, config: "KMeans.Config", task: Task) -> None:
        super().__init__(task)
        self._config = config
        self._clusters = cluster_count(config.clusters, task)
        self.rounds = 1 + config.iterations

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: all samples' moments, then iterations until no centroid moves."""
        if server.round >= self.rounds or server.metadata.get("settled"):
            return None
        if CENTROIDS not in server.slots:
            return sums_phase(server, MOMENTS, (), MOMENTS, self._moment_bounds())
        width = self._task.features
        bounds = cluster_bounds(width, LIMIT, width * LIMIT**2)
        return sums_phase(server, "lloyd", (CENTROIDS,), SUMS, bounds)

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return sums over all samples of the client, or over those nearest to each centroid."""
        points = self._features(client, slots)
        if phase.name == MOMENTS:
            return Outcome(up={MOMENTS: once(moment_sums(points, self.widest))})
        moving = slots[CENTROIDS][MOVING]
        found = sums_of_starts(points, moving.unbind())
        return Outcome(up={SUMS: once({SUMS: torch.stack(found)})})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Draw starts from the moments of all samples, or move each start by Lloyd's step."""
        if phase.name == MOMENTS:
            moments, generator = moments_of(summed(means[MOMENTS])), draws(server, "starts")
            restarts = range(self._config.restarts)
            starts = [moments.draws(self._clusters, generator) for _ in restarts]
            return self._after(server, phase, starts, starts[0], {"inertia": None})
        before, least = server.slots[CENTROIDS], server.metadata["inertia"]
        best = before[BEST]
        generator, moving = draws(server, "empty", phase.round), []
        every, loss = summed(means[SUMS])[SUMS], server.metadata.get("loss")
        for centroids, columns in zip(before[MOVING], every, strict=True):
            sums = ClusterSums(columns)
            inertia = sums.inertia(centroids)
            if not isinstance(least, float) or inertia < least:
                best, least = centroids, inertia
                loss = inertia / sums.counts.sum().item()
            after = moved(sums, generator)
            if not torch.equal(after, centroids):
                moving.append(after)
        return self._after(server, phase, moving, best, {"inertia": least, "loss": loss})

    def measured(self, server: ServerState) -> Mapping[str, float]:
        """Return the least inertia of a start so far, per sample."""
        loss = server.metadata.get("loss")
        return {"loss": loss} if isinstance(loss, float) else {}

    def _head_of(self, server: ServerState) -> nn.Module | None:
        return best_head(server)

    def _after(
        self,
        server: ServerState,
        phase: Phase,
        moving: list[Int32[Tensor, "k d"]],
        best: Int32[Tensor, "k d"],
        measured: Mapping[str, Json],
    ) -> ServerState:
        """Return the state that continues with the starts whose centroids still move."""
        stack = torch.stack(moving) if moving else best.new_zeros((0, *best.shape))
        zeros = torch.zeros(len(moving), *best.shape[:1], best.shape[1] + 2, dtype=torch.float64)
        slots: Slots = {CENTROIDS: {MOVING: stack, BEST: best}, SUMS: {SUMS: zeros}}
        return server.advance(phase, slots, {**measured, "settled": not moving})


def best_head(server: ServerState) -> Centroids | None:
    """Return a head of the best centroids so far, if there are any."""
    best = server.slots.get(CENTROIDS)
    return None if best is None else Centroids(off_lattice(best[BEST]))
