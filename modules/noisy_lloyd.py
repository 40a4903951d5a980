"""k-means under differential privacy of single samples: Lloyd's algorithm on noisy sums.

Blum, Dwork, McSherry and Nissim, "Practical Privacy: The SuLQ Framework" (PODS 2005): samples are
clipped to a ball, each iteration adds noise to the sum and the number of every cluster's samples,
and nothing else is asked. One more noisy sum, the mean, places the start. Numbers take part in the
joint norm of a sample with a weight of clip by d^(1/4), which shares the noise so that the
centroids err least.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float64, Int32
from torch import Tensor

from coterie.clustering.lattice import LIMIT, clipped_rows, cluster_sums, nearest, on_lattice
from coterie.contract import Bounds, Outcome, Phase, ServerState, Slots, WeightedUpdate, summed
from coterie.errors import ConfigError
from coterie.modules.exact_sums import SUMS, draws, once, sums_phase
from coterie.modules.sent_centroids import CENTROIDS

MEAN, LLOYD = "mean", "lloyd"
_STEPS = 2**20
_OFFSET = 1 / 16
"""Distance of the two new centroids from the mean that they replace, relative to the clip norm."""
_FEWEST = 1 / 50
"""Share of the mean cluster size below which a cluster is dropped, since its mean is noise."""


class NoisyLloyd:
    """The phases of private k-means.

    Args:
        clip: The ball's radius.
        restarts: Starts, of which there can only be one.

    Raises:
        ConfigError: If there are several starts, or the radius is beyond the exact sums.
    """

    def __init__(self, clip: float, clusters: int, features: int, restarts: int) -> None:
        if restarts > 1:
            raise ConfigError(
                f"method.restarts={restarts}: under privacy.dp each start takes noise of its own, "
                "and nothing tells which is best; give method.restarts=1."
            )
        if clip > LIMIT:
            raise ConfigError(
                f"privacy.dp.clip={clip:g}: exact sums take at most {LIMIT}; scale the features."
            )
        self._clip, self._clusters, self._features = clip, clusters, features
        self._weight = max(1, math.floor(clip * features**-0.25 * _STEPS)) / _STEPS

    @property
    def sensitivity(self) -> float:
        """The norm of a sample's part of the sums: itself, and its count."""
        return math.nextafter(math.hypot(self._clip, self._weight), math.inf)

    def sizes(self, sums: Tensor) -> Tensor:
        """Return the number of samples of each cluster, which sums count with a weight."""
        counts: Tensor = sums[..., -1] / self._weight
        return counts.round()

    def start(self) -> dict[str, Tensor]:
        """Return the sums' shapes, for one cluster of all samples."""
        return {SUMS: torch.zeros(1, self._features + 1, dtype=torch.float64)}

    def next(self, server: ServerState) -> Phase:
        """Return the next phase: the mean of all samples, then iterations."""
        name, down = (LLOYD, (CENTROIDS,)) if CENTROIDS in server.slots else (MEAN, ())
        phase = sums_phase(server, name, down, SUMS, {SUMS: Bounds(highest=self._clip)})
        return replace(phase, sensitivity=self.sensitivity)

    def client(self, values: Tensor, phase: Phase, slots: Slots, best: str) -> Outcome:
        """Return the sum and the weighted number of each cluster's clipped samples."""
        points = clipped_rows(values, self._clip)
        if phase.name == MEAN:
            assigned, clusters = torch.zeros(len(points), dtype=torch.int64), 1
        else:
            assigned, clusters = nearest(points, slots[CENTROIDS][best]), self._clusters
        columns = cluster_sums(points, assigned, clusters)
        sums = torch.cat([columns[:, :-2], columns[:, -1:] * self._weight], dim=1)
        return Outcome(up={SUMS: once({SUMS: sums})})

    def after(
        self, server: ServerState, means: Mapping[str, WeightedUpdate]
    ) -> Int32[Tensor, "k d"]:
        """Return the centroids after a phase, from its noisy sums."""
        generator = draws(server, "noisy", server.round)
        centroids, counts = self.found(summed(means[SUMS])[SUMS])
        if CENTROIDS not in server.slots:
            around = self._directions(generator, self._clusters, centroids.shape[1])
            return on_lattice(centroids + around)
        return on_lattice(self.refilled(centroids, counts, generator))

    def found(
        self, columns: Float64[Tensor, "k d+1"]
    ) -> tuple[Float64[Tensor, "k d"], Float64[Tensor, "k"]]:
        """Return means within the ball, and numbers of samples, from noisy sums."""
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
        step = self._directions(generator, len(given_up), centroids.shape[1]) / 2
        shared = centroids[largest]
        centroids[given_up], centroids[largest] = shared + step, shared - step
        return centroids

    def _directions(
        self, generator: np.random.Generator, number: int, features: int
    ) -> Float64[Tensor, "n d"]:
        """Return random vectors of equal length."""
        found: Tensor = torch.from_numpy(generator.standard_normal((number, features)))
        length: Tensor = found.norm(dim=1, keepdim=True)
        return found / length * (self._clip * _OFFSET)

    def _in_ball(self, centroids: Float64[Tensor, "k d"]) -> Float64[Tensor, "k d"]:
        """Move means into the ball of all possible means, which noise may have left."""
        norms = centroids.norm(dim=1, keepdim=True)
        return centroids.mul(self._clip).div(norms.clamp_min(self._clip))
