"""Concord and prototypes with differential privacy of single samples.

1. `moments`: number, sum and products of representations clipped to a ball, and of Concord's
   differences between warps. Noise on products, then their leading eigenvectors: Dwork, Talwar,
   Thakurta and Zhang, "Analyze Gauss" (STOC 2014). Samples are projected on these directions and
   normalised, so from here on one adds a unit vector to a sum, and noise has few coordinates.
2. `prototypes`: Lloyd's algorithm on noisy sums (`noisy_lloyd`), with many centroids.
3. At the server: the graph over centroids that stand for more samples than noise makes up, and its
   cut. It is made each round, so a run that its budget ends early has clusters too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Float64, Int32
from threadpoolctl import threadpool_limits
from torch import Tensor, nn

from coterie.clustering.lattice import clipped_rows, off_lattice, on_lattice, products
from coterie.clustering.prototypes import cluster_prototypes
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
    derive_seed,
    summed,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError, RunError
from coterie.modules.concord import Concord
from coterie.modules.exact_sums import (
    COUNT,
    MOMENTS,
    POINTS,
    PRODUCTS,
    PROJECTION,
    PROTOTYPES,
    SUMS,
    TOTAL,
    WARPED,
    differences,
    discriminant,
    draws,
    once,
    project_in,
    sums_phase,
    with_slots,
)
from coterie.modules.fixed_encoder import OnEncoder
from coterie.modules.noisy_lloyd import NoisyLloyd
from coterie.modules.prototypes import Prototypes
from coterie.modules.sent_centroids import CENTROIDS
from coterie.networks.branch import known_count
from coterie.networks.prototypes import LatticeProjection, directions
from coterie.networks.prototypes import Prototypes as PrototypesHead
from coterie.networks.warps import Warp, WarpSizes, warps_of

ITERATIONS = 8
_FEWEST = 1 / 5
"""Share of the mean prototype's samples below which a prototype is dropped as noise."""
_COMPONENTS = 64
"""Width of the representation for prototypes: noise has as many coordinates."""
_COARSE = 4
"""Steps of the lattice to which moments are rounded, so that products are multiples of 2^-20."""


class NoisyPrototypes(OnEncoder):
    """Clusters from prototypes, both from noisy sums.

    Args:
        config: Gives `clusters`, `prototypes` and `neighbours`.
        components: Directions to project on; fewer where there are fewer features.
        warps: Pairs of warps, of which the directions keep off.
        ridge: Added to the warps' covariance, as a share of its mean variance.
        cohort: Share of the clients in each phase.
    """

    rounds = 1 + ITERATIONS

    def __init__(
        self,
        config: Concord.Config | Prototypes.Config,
        task: Task,
        components: int,
        *,
        warps: Sequence[tuple[Warp, Warp]] = (),
        ridge: float = 0.0,
        cohort: float = 1.0,
    ) -> None:
        super().__init__(task)
        self._clusters, self._prototypes = known_count(config.clusters, task), config.prototypes
        self._components, self._neighbours = min(components, task.features), config.neighbours
        self._warps, self._ridge, self._cohort = warps, ridge, cohort
        assert task.clip is not None
        self._clip, self._lloyd = task.clip, NoisyLloyd(1.0, self._components)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built, and moments of zero."""
        width = self._task.features
        shapes = {COUNT: (1,), TOTAL: (width,), PRODUCTS: (width, width)}
        if self._warps:
            shapes[WARPED] = (width, width)
        zeros = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        return with_slots(super().init(sizes, seed), {MOMENTS: zeros})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: the moments, then iterations."""
        if server.round >= self.rounds:
            return None
        if PROJECTION in server.slots:
            phase = self._lloyd.phase(server, PROTOTYPES, (PROJECTION, CENTROIDS))
            return replace(phase, cohort=self._cohort)
        bounds = dict.fromkeys(server.slots[MOMENTS], Bounds(highest=1.0))
        phase = sums_phase(server, MOMENTS, (), MOMENTS, bounds)
        # In each of them a sample has a norm of 1 at most.
        sensitivity = math.nextafter(math.sqrt(len(bounds)), math.inf)
        return replace(phase, cohort=self._cohort, sensitivity=sensitivity)

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return the client's sums; its projected samples stay with it from task to task."""
        if phase.name == MOMENTS:
            return Outcome(up={MOMENTS: once(self._moments(client, slots))})
        if client.state is None:
            project = LatticeProjection(**slots[PROJECTION])
            points = on_lattice(project(self._embedded(client, slots).double()))
        else:
            points = client.state[POINTS]
        up = self._lloyd.sums(off_lattice(points), slots[CENTROIDS][CENTROIDS])
        return Outcome(up=up, state={POINTS: points.to(torch.int16)})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Compute the projection from noisy moments, or the next centroids and their clusters."""
        if phase.name == MOMENTS:
            return self._projected(server, phase, summed(means[MOMENTS]))
        centroids, counts = self._lloyd.found(summed(means[SUMS])[SUMS])
        prototypes = self._cut(server, phase, centroids, counts)
        moved = self._lloyd.refilled(centroids, counts, draws(server, "noisy", phase.round))
        return server.advance(phase, {CENTROIDS: {CENTROIDS: on_lattice(moved)}, **prototypes})

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster."""
        return self._lloyd.group_sizes(sums)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with projection and prototypes once there are any."""
        model = super().model_for(server, client)
        project_in(model, server)
        return model

    def _head_of(self, server: ServerState) -> nn.Module | None:
        head = server.slots.get(PROTOTYPES)
        return None if head is None else PrototypesHead(**head)

    def _moments(self, client: Client, slots: Slots) -> dict[str, Tensor]:
        """Return sums over samples in the unit ball, and over their changes by paired warps."""
        embed = partial(self._embedded, client, slots)
        points = _in_ball(embed() / self._clip, 1.0)
        sums = {
            COUNT: torch.tensor([float(len(points))], dtype=torch.float64),
            TOTAL: off_lattice(points).sum(dim=0),
            PRODUCTS: products(points),
        }
        if not self._warps:
            return sums
        within, share = torch.zeros_like(sums[PRODUCTS]), len(self._warps) ** -0.5
        for away in differences(client, self._warps, embed):
            # Twice, as differences are short: all pairs together have a norm of 1 at most.
            within += products(_in_ball(away * (2 * share / self._clip), share))
        return {**sums, WARPED: within}

    def _projected(self, server: ServerState, phase: Phase, sums: Tensors) -> ServerState:
        """Set the projection by the noisy covariance, and centroids in random directions."""
        count = sums[COUNT].clamp_min(1)
        mean = sums[TOTAL] / count
        mean = mean / mean.norm().clamp_min(1)
        covariance = _symmetric(sums[PRODUCTS]) / count - torch.outer(mean, mean)
        steps = discriminant(covariance, self._components)
        if self._warps:
            within = _positive(steps.T @ _symmetric(sums[WARPED]) @ steps)
            if float(within.trace()) > 0:  # else it is all noise
                inside = steps.T @ covariance @ steps
                steps = steps @ discriminant(inside, self._components, within, self._ridge)
        generator = draws(server, "starts")
        starts = torch.from_numpy(generator.standard_normal((self._prototypes, steps.shape[1])))
        slots: Slots = {
            PROJECTION: {"mean": on_lattice(mean * self._clip), "directions": directions(steps)},
            CENTROIDS: {CENTROIDS: on_lattice(starts / starts.norm(dim=1, keepdim=True))},
            **self._lloyd.no_sums(self._prototypes),
        }
        return server.advance(phase, slots)

    def _cut(
        self,
        server: ServerState,
        phase: Phase,
        centroids: Float64[Tensor, "m c"],
        counts: Float64[Tensor, "m"],
    ) -> dict[str, Mapping[str, Tensor]]:
        """Return the prototypes and their clusters; if too few, those of the round before."""
        kept = counts >= (_FEWEST * counts.clamp_min(0).mean()).clamp_min(1)
        number, few = int(kept.sum()), max(4, self._clusters or 0)
        if number < few and phase.round < self.rounds:
            return {}
        if number < few:
            raise RunError(
                f"Only {number} prototypes stand out from the noise, too few to cut into clusters; "
                "lower privacy.dp.noise_multiplier or method.prototypes."
            )
        points = on_lattice(centroids[kept])
        # Samples are unit vectors, so Σ ‖z − mean‖² = n (1 − ‖mean‖²).
        away = (1 - off_lattice(points).square().sum(dim=1)).clamp_min(0)
        found = cluster_prototypes(
            points,
            counts[kept],
            counts[kept] * away,
            clusters=self._clusters,
            neighbours=self._neighbours,
            seed=derive_seed(server.whole("seed"), "cut"),
        )
        return {PROTOTYPES: found.tensors}


class PrivateConcord(NoisyPrototypes):
    """Concord under `privacy.dp`: the projection avoids directions that warps of images change."""

    def __init__(self, config: Concord.Config, task: Task) -> None:
        sizes = WarpSizes(config.rotation, config.scale, config.shear, config.translation)
        warps = warps_of(sizes.pairs() if len(task.shape) == 3 else [], task.shape)
        super().__init__(config, task, config.components, warps=warps, ridge=config.ridge)


class PrivatePrototypes(NoisyPrototypes):
    """Prototypes under `privacy.dp`."""

    def __init__(self, config: Prototypes.Config, task: Task) -> None:
        if config.clustering == "hdbscan":
            raise ConfigError(
                "method.clustering=hdbscan: under privacy.dp there are too few prototypes to tell "
                "dense from sparse; take method.clustering=cut, or leave out privacy.dp."
            )
        super().__init__(config, task, _COMPONENTS, cohort=config.participation)


def _in_ball(values: Float[Tensor, "n d"], norm: float) -> Int32[Tensor, "n d"]:
    """Return rows on a coarse lattice, scaled so that none is longer than `norm`."""
    return clipped_rows(values / _COARSE, norm / _COARSE) * _COARSE


def _symmetric(products_: Float64[Tensor, "d d"]) -> Float64[Tensor, "d d"]:
    return (products_ + products_.T) / 2


def _positive(matrix: Float64[Tensor, "d d"]) -> Float64[Tensor, "d d"]:
    """Return the matrix without the negative eigenvalues that noise gave it."""
    with threadpool_limits(1):
        values, vectors = np.linalg.eigh(matrix.numpy())
    return torch.from_numpy((vectors * np.maximum(values, 0)) @ vectors.T)
