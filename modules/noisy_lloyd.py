"""k-means under differential privacy of single samples: Lloyd's algorithm on noisy sums.

Blum, Dwork, McSherry and Nissim, "Practical Privacy: The SuLQ Framework" (PODS 2005): samples are
clipped to a ball, each iteration adds noise to the sum and the number of every cluster's samples,
and nothing else is asked. One more noisy sum, the mean, places the start. Numbers take part in the
joint norm of a sample with a weight of clip by d^(1/4), which shares the noise so that the
centroids err least.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from torch import Tensor, nn

from coterie.clustering.lattice import LIMIT, clipped_rows, cluster_sums, nearest, on_lattice
from coterie.contract import (
    Bounds,
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
from coterie.errors import ConfigError
from coterie.modules.exact_sums import SUMS, draws, once, sums_phase, with_slots
from coterie.modules.fixed_encoder import OnEncoder
from coterie.modules.kmeans import BEST, KMeans, best_head
from coterie.modules.sent_centroids import CENTROIDS
from coterie.networks.branch import cluster_count

MEAN, LLOYD = "mean", "lloyd"
_STEPS = 2**20
_OFFSET = 1 / 16
"""Distance of the two new centroids from the mean that they replace, relative to the clip norm."""
_FEWEST = 1 / 50
"""Share of the mean cluster size below which a cluster is dropped, since its mean is noise."""


class NoisyLloyd:
    """Lloyd's algorithm on noisy sums.

    Args:
        clip: The ball's radius.

    Raises:
        ConfigError: If the radius is beyond the exact sums.
    """

    def __init__(self, clip: float, features: int) -> None:
        if clip > LIMIT:
            raise ConfigError(
                f"privacy.dp.clip={clip:g}: exact sums take at most {LIMIT}; scale the features."
            )
        self._clip, self._features = clip, features
        self._weight = max(1, math.floor(clip * features**-0.25 * _STEPS)) / _STEPS

    @property
    def sensitivity(self) -> float:
        """The L2 norm of what one sample adds to the sums: its vector and its weighted count."""
        return math.nextafter(math.hypot(self._clip, self._weight), math.inf)

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster; the sums hold it times a weight."""
        return {SUMS: (sums[SUMS][SUMS][..., -1] / self._weight).round()} if SUMS in sums else {}

    def no_sums(self, clusters: int) -> dict[str, Tensors]:
        """Return slots of zeros in the shapes of the sums of this many clusters."""
        return {SUMS: {SUMS: torch.zeros(clusters, self._features + 1, dtype=torch.float64)}}

    def phase(self, server: ServerState, name: str, down: Iterable[str]) -> Phase:
        """Return the next round, in which clients send these sums."""
        phase = sums_phase(server, name, down, SUMS, {SUMS: Bounds(highest=self._clip)})
        return replace(phase, sensitivity=self.sensitivity)

    def sums(
        self, values: Float[Tensor, "n d"], centroids: Int32[Tensor, "k d"]
    ) -> dict[str, WeightedUpdate]:
        """Return the sum and the weighted number of each cluster's clipped samples."""
        points = clipped_rows(values, self._clip)
        columns = cluster_sums(points, nearest(points, centroids), len(centroids))
        sums = torch.cat([columns[:, :-2], columns[:, -1:] * self._weight], dim=1)
        return {SUMS: once({SUMS: sums})}

    def found(
        self, columns: Float64[Tensor, "k d+1"]
    ) -> tuple[Float64[Tensor, "k d"], Float64[Tensor, "k"]]:
        """Return each cluster's mean, moved into the ball, and its size, from noisy sums."""
        counts = columns[:, -1] / self._weight
        return self._in_ball(columns[:, :-1] / counts.clamp_min(1)[:, None]), counts

    def refilled(
        self,
        centroids: Float64[Tensor, "k d"],
        counts: Float64[Tensor, "k"],
        generator: np.random.Generator,
    ) -> Float64[Tensor, "k d"]:
        """Replace clusters of too few samples by parts of the largest ones."""
        few = counts < _FEWEST * counts.clamp_min(0).mean()
        given_up = torch.nonzero(few)[:, 0]
        largest = counts.argsort(descending=True)[: len(given_up)]
        centroids = centroids.clone()
        step = self.directions(generator, len(given_up)) / 2
        shared = centroids[largest]
        centroids[given_up], centroids[largest] = shared + step, shared - step
        return centroids

    def directions(self, generator: np.random.Generator, number: int) -> Float64[Tensor, "n d"]:
        """Return random vectors of equal length."""
        found: Tensor = torch.from_numpy(generator.standard_normal((number, self._features)))
        length: Tensor = found.norm(dim=1, keepdim=True)
        return found / length * (self._clip * _OFFSET)

    def _in_ball(self, centroids: Float64[Tensor, "k d"]) -> Float64[Tensor, "k d"]:
        """Move means that noise has pushed out back into the ball of all possible means."""
        norms = centroids.norm(dim=1, keepdim=True)
        return centroids.mul(self._clip).div(norms.clamp_min(self._clip))


class PrivateKMeans(OnEncoder):
    """k-means under `privacy.dp`: the mean of all samples, then Lloyd's algorithm."""

    def __init__(self, config: KMeans.Config, task: Task) -> None:
        super().__init__(task)
        self._clusters = cluster_count(config.clusters, task)
        if config.restarts > 1:
            raise ConfigError(
                f"method.restarts={config.restarts}: under privacy.dp each start takes its own "
                "noise, and nothing tells which is best; give method.restarts=1."
            )
        assert task.clip is not None
        self._lloyd = NoisyLloyd(task.clip, task.features)
        self.rounds = 1 + config.iterations

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built, and zeros for the sums of one cluster of all samples."""
        return with_slots(super().init(sizes, seed), self._lloyd.no_sums(1))

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: the mean of all samples, then iterations."""
        if server.round >= self.rounds:
            return None
        if CENTROIDS in server.slots:
            return self._lloyd.phase(server, LLOYD, (CENTROIDS,))
        return self._lloyd.phase(server, MEAN, ())

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return sums over the samples nearest to each centroid, or over all."""
        anywhere = torch.zeros(1, self._task.features, dtype=torch.int32)
        centroids = anywhere if phase.name == MEAN else slots[CENTROIDS][BEST]
        return Outcome(up=self._lloyd.sums(self._embedded(client, slots), centroids))

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Place centroids around the mean of all samples, or take Lloyd's step."""
        generator = draws(server, "noisy", server.round)
        centroids, counts = self._lloyd.found(summed(means[SUMS])[SUMS])
        if phase.name == MEAN:
            centroids = centroids + self._lloyd.directions(generator, self._clusters)
        else:
            centroids = self._lloyd.refilled(centroids, counts, generator)
        room = self._lloyd.no_sums(self._clusters)
        return server.advance(phase, {CENTROIDS: {BEST: on_lattice(centroids)}, **room})

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster."""
        return self._lloyd.group_sizes(sums)

    def _head_of(self, server: ServerState) -> nn.Module | None:
        return best_head(server)
