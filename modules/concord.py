"""Concord: clusters that are the same however the samples are split over clients.

Coterie's own method. Everything that leaves a client is a sum over its samples, and everything that
follows is computed from the sums over all clients. These are exact, so neither representation nor
clusters depend on the split, to the bit.

1. `moments`: features h of each sample, and h⁺ and h⁻ of it turned, scaled, sheared and shifted to
   either side. Σ h hᵀ and Σ (h⁺ − h⁻)(h⁺ − h⁻)ᵀ give the directions in which samples differ most,
   relative to how far such a warp moves them: the generalised eigenvectors of both covariances.
   This is Fisher's discriminant with each sample a class of its own, or a linear contrastive
   learner in closed form.
2. `prototypes`: k-means with many centroids among the projected unit vectors, by exact sums, from
   several starts at a time.
3. At the server, for each start: a neighbour graph over the prototypes, as in McInnes et al.,
   "UMAP: Uniform Manifold Approximation and Projection for Dimension Reduction" (2018), and its
   normalised cut, as in Ng et al., "On Spectral Clustering: Analysis and an algorithm" (2001). The
   start counts whose clusters are most alike in size.

Under `privacy.dp` the sums carry noise (`noisy_prototypes`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Annotated

import torch
from jaxtyping import Int32
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.clustering.exact_kmeans import ClusterSums, grown, moved
from coterie.clustering.lattice import (
    LIMIT,
    nearest,
    off_lattice,
    on_lattice,
    products,
    sums_of_starts,
)
from coterie.clustering.prototypes import PrototypeClusters, cluster_prototypes
from coterie.contract import (
    Bounds,
    Client,
    Mean,
    Outcome,
    Phase,
    Schedule,
    ServerState,
    Slots,
    Task,
    Tensors,
    derive_seed,
    summed,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.form import UNIT_LENGTH
from coterie.errors import ConfigError
from coterie.modules.exact_sums import (
    MOMENTS,
    POINTS,
    PRODUCTS,
    PROJECTION,
    SUMS,
    ExactSumsConfig,
    OnExactSums,
    cluster_bounds,
    differences,
    discriminant,
    draws,
    moment_sums,
    moments_of,
    once,
    project_in,
    with_slots,
)
from coterie.modules.fixed_encoder import CENTROIDS, ENCODER
from coterie.modules.noisy_prototypes import PROTOTYPES, WARPED, NoisyPrototypes
from coterie.networks.prototypes import LatticeProjection, Prototypes, directions
from coterie.networks.quadratic import (
    QuadraticClassifier,
    fit_sums,
    fitted,
    largest_value,
    products_of,
)
from coterie.networks.warps import Warp, WarpSizes

LABELS, CLASSIFIER = "labels", "classifier"
TARGETS, WEIGHTS = "targets", "weights"
_ITERATIONS = (3, 2, 2, 6)
_AGREEMENT = 0.9
"""Share of the samples whose prototypes the classifier must give their own cluster. Where quadrics
cannot follow the clusters, it gives fewer, and the prototypes decide alone."""
_MESSAGES = {
    MOMENTS: ((), MOMENTS),
    PROTOTYPES: ((PROJECTION, CENTROIDS), SUMS),
    LABELS: ((PROJECTION, PROTOTYPES), LABELS),
}
"""Of each phase what goes down besides the encoder, and what comes up."""


class Concord(OnExactSums):
    """Clusters that are the same however the samples are split over clients."""

    class Config(ExactSumsConfig):
        """Concord's configuration."""

        clusters: PositiveInt | None = None
        """Number of clusters k; by default the data's number of classes, and without classes the
        number after which the graph's eigenvalues fall most."""
        prototypes: PositiveInt = 2000
        """Prototypes; fewer where there are less than four times `minimum` samples for each."""
        minimum: PositiveInt = 3
        """Samples that a prototype stands for, over all clients; others are dropped."""
        restarts: PositiveInt = 5
        """Starts of k-means, all followed at the same time; the one whose clusters are most alike
        in size counts. Set 1 where clusters are known to differ much."""
        components: PositiveInt = 64
        """Width of the representation."""
        neighbours: Annotated[int, Field(ge=2)] = 15
        """Neighbours of a prototype in the graph; all others where there are no more."""
        rotation: Annotated[float, Field(ge=0.0, lt=90.0)] = 10.0
        """Angle by which images are turned to either side, in degrees; not for vectors."""
        scale: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.12
        """Relative change of size of each axis, to either side."""
        shear: Annotated[float, Field(ge=0.0)] = 0.18
        """Horizontal shift per unit of height, to either side."""
        translation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.075
        """Shift along each axis, as a share of the side, to either side."""
        ridge: Annotated[float, Field(gt=0.0)] = 0.3
        """Added to the warps' covariance, as a share of its mean variance."""

    def __init__(self, config: "Concord.Config", task: Task) -> None:
        super().__init__(task)
        self._config = config
        self._clusters = config.clusters or task.classes or None
        if self._clusters == 1:
            raise ConfigError("method.clusters=1: there is nothing to tell apart; set 2 or more.")
        sizes = WarpSizes(config.rotation, config.scale, config.shear, config.translation)
        self._warps = sizes.pairs() if len(task.shape) == 3 else []
        self._schedule = growth(config.prototypes)
        self.rounds = 1 + self._schedule.rounds + 1
        self._noisy: NoisyPrototypes | None = None
        if task.clip is not None:
            self._noisy = NoisyPrototypes(
                task.clip,
                task.features,
                clusters=self._clusters,
                prototypes=config.prototypes,
                components=config.components,
                neighbours=config.neighbours,
                warps=self._warp_pairs(),
                ridge=config.ridge,
            )
            self.rounds = self._noisy.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """The encoder, and no sums yet."""
        server = super().init(sizes, seed)
        if self._noisy is not None:
            return with_slots(server, {MOMENTS: self._noisy.start(self._task.features)})
        moments = dict(server.slots[MOMENTS])
        if self._warps:
            moments[WARPED] = torch.zeros_like(moments[PRODUCTS])
        return with_slots(server, {MOMENTS: moments})

    def next(self, server: ServerState) -> Phase | None:
        """Moments of all samples, then an iteration of k-means a round, then labels."""
        if self._noisy is not None:
            return self._noisy.next(server)
        if server.round >= self.rounds:
            return None
        clustered = LABELS if PROTOTYPES in server.slots else PROTOTYPES
        name = clustered if PROJECTION in server.slots else MOMENTS
        down, up = _MESSAGES[name]
        return Phase(
            name=name,
            stage="clustering",
            round=server.round + 1,
            down=frozenset({ENCODER, *down}),
            up=frozenset({up}),
            metrics=frozenset({"loss"} if name == PROTOTYPES else ()),
            bounds={up: self._bounds(name, server)},
        )

    def _bounds(self, name: str, server: ServerState) -> dict[str, Bounds]:
        """What a sample adds to a phase's sums; after the first, samples are unit vectors."""
        if name == MOMENTS:
            pairs = {WARPED: Bounds(highest=len(self._warps) * (2 * LIMIT) ** 2)}
            return {**self._moment_bounds(), **(pairs if self._warps else {})}
        width = server.slots[PROJECTION]["directions"].shape[1]
        if name == PROTOTYPES:
            bounds = cluster_bounds(width, UNIT_LENGTH, 2.0)[SUMS]
            return dict.fromkeys(server.slots[SUMS], bounds)
        largest = largest_value(width)
        others = [largest] * (len(server.slots[LABELS][TARGETS]) - 1)
        # φ begins with 1: the first row of the targets counts samples.
        rows = Bounds(
            lowest=((0.0,), *((-value,) for value in others)),
            highest=((1.0,), *((value,) for value in others)),
        )
        return {PRODUCTS: Bounds(highest=largest**2), TARGETS: rows}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """The client's sums. Its projected samples stay with it from turn to turn."""
        if self._noisy is not None:
            return self._noisy.client(client, phase, slots, partial(self._embedded, client, slots))
        if phase.name == MOMENTS:
            return Outcome(up={MOMENTS: once(self._moments(client, slots))})
        points = self._projected_points(client, slots)
        state = {POINTS: points}
        if phase.name == LABELS:
            labels = _label_sums(points, slots[PROTOTYPES])
            return Outcome(up={LABELS: once(labels)}, state=state)
        starts = slots[CENTROIDS]
        sums = dict(zip(starts, sums_of_starts(points, [*starts.values()]), strict=True))
        inertias = [ClusterSums(sums[start]).inertia(starts[start]) for start in starts]
        loss = sum(inertias) / len(inertias) / len(points)
        return Outcome(up={SUMS: once(sums)}, state=state, metrics={"loss": loss})

    def _moments(self, client: Client, slots: Slots) -> dict[str, Tensor]:
        """Sums over the features, and over differences between both warps of a pair."""
        sums = moment_sums(self._features(client, slots), self.widest)
        if not self._warps:
            return sums
        within = torch.zeros_like(sums[PRODUCTS])
        for away in differences(client, self._warp_pairs(), partial(self._features, client, slots)):
            within += products(away)
        return {**sums, WARPED: within}

    def _warp_pairs(self) -> list[tuple[Warp, Warp]]:
        """The warps; none of vectors."""
        if not self._warps:
            return []
        _, height, width = self._task.shape
        return [(Warp(up, height, width), Warp(down, height, width)) for up, down in self._warps]

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Projection and first centroids; k-means' steps; graph and cut; the classifier."""
        if self._noisy is not None:
            return self._noisy.after(server, phase, means)
        if phase.name == MOMENTS:
            return self._projected(server, phase, summed(means[MOMENTS]))
        if phase.name == LABELS:
            return self._labelled(server, phase, summed(means[LABELS]))
        starts = {start: ClusterSums(sums) for start, sums in summed(means[SUMS]).items()}
        if self._schedule.at(phase.round) is None:
            return self._clustered(server, phase, starts)
        steps = {start: self._step(server, phase, start, sums) for start, sums in starts.items()}
        return _with_centroids(server, phase, steps)

    def _step(
        self, server: ServerState, phase: Phase, start: str, sums: ClusterSums
    ) -> Int32[Tensor, "k c"]:
        """k-means' next centroids, more of them where the schedule says so."""
        wanted, generator = self._schedule.at(phase.round), draws(server, start, phase.round)
        if wanted and wanted > len(sums.counts):
            return grown(sums, wanted, 4 * self._config.minimum, generator)
        return moved(sums, generator)

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """The samples of each cluster; for the labels, whose φ begins with 1, the first row."""
        if self._noisy is not None:
            return self._noisy.group_sizes(sums)
        if LABELS in sums:
            return {LABELS: sums[LABELS][TARGETS][0]}
        return {SUMS: torch.cat([s[:, -1] for s in sums[SUMS].values()])} if SUMS in sums else {}

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The encoder, with projection and prototypes once there are any."""
        model = super().model_for(server, client)
        project_in(model, server)
        if CLASSIFIER in server.slots:
            width = server.slots[PROJECTION]["directions"].shape[1]
            model.head = QuadraticClassifier(server.slots[CLASSIFIER][WEIGHTS], width)
        elif PROTOTYPES in server.slots:
            model.head = Prototypes(**server.slots[PROTOTYPES])
        return model

    def _projected(self, server: ServerState, phase: Phase, sums: Tensors) -> ServerState:
        """The projection, and centroids drawn from the samples' moments."""
        moments = moments_of(sums)
        within = sums[WARPED] / (4 * moments.count) if WARPED in sums else None
        mean = on_lattice(moments.mean)
        config = self._config
        steps = discriminant(moments.covariance, config.components, within, config.ridge)
        project = LatticeProjection(mean, directions(steps))
        most = max(1, moments.count // (4 * self._config.minimum))
        first, centroids = min(self._schedule.stages[0][0], most), {}
        for start in map(str, range(config.restarts)):
            drawn = moments.draws(first, draws(server, "starts", start))
            centroids[start] = on_lattice(project(off_lattice(drawn)))
        slots = {PROJECTION: {"mean": mean, "directions": project.directions}}
        return _with_centroids(with_slots(server, slots), phase, centroids)

    def _clustered(
        self, server: ServerState, phase: Phase, starts: Mapping[str, ClusterSums]
    ) -> ServerState:
        """The prototypes of the start whose clusters are most alike in size, and these clusters.

        If nobody gives their number, it is the first start's.

        Raises:
            RunError: If there are too few prototypes for a graph.
        """
        first, *others = starts.values()
        cuts = [self._cut(server, first, self._clusters)]
        number = cuts[0].tensors["members"].shape[1]
        found = max([*cuts, *(self._cut(server, sums, number) for sums in others)], key=evenness)
        labels = _label_sums(found.tensors["points"][:0], found.tensors)
        slots = {PROTOTYPES: found.tensors, LABELS: labels}
        return server.advance(phase, slots, {"eigenvalues": [*found.eigenvalues]})

    def _cut(
        self, server: ServerState, sums: ClusterSums, clusters: int | None
    ) -> PrototypeClusters:
        """The prototypes of one start and their clusters."""
        kept = sums.counts >= self._config.minimum
        return cluster_prototypes(
            on_lattice(sums.means[kept]),
            sums.counts[kept],
            sums.scatter[kept],
            clusters=clusters,
            neighbours=self._config.neighbours,
            seed=derive_seed(server.whole("seed"), "cut"),
        )

    def _labelled(self, server: ServerState, phase: Phase, sums: Tensors) -> ServerState:
        """The classifier, if it agrees with the prototypes that its labels come from."""
        prototypes = server.slots[PROTOTYPES]
        points, counts = prototypes["points"], prototypes["counts"]
        weights = fitted(sums[PRODUCTS], sums[TARGETS])
        found = QuadraticClassifier(weights, points.shape[1])(off_lattice(points)).argmax(dim=1)
        same = found == prototypes["members"].argmax(dim=1)
        agreement = float(counts[same].sum() / counts.sum())
        slots = {CLASSIFIER: {WEIGHTS: weights}} if agreement >= _AGREEMENT else {}
        return server.advance(phase, slots, {"agreement": agreement})


def growth(prototypes: int) -> Schedule[int]:
    """Numbers of centroids, each with its iterations: k-means starts with an eighth of them."""
    sizes = [max(1, prototypes // part) for part in (8, 4, 2, 1)]
    return Schedule(tuple(zip(sizes, _ITERATIONS, strict=True)))


def evenness(found: PrototypeClusters) -> float:
    """The entropy of the clusters' shares of the samples, at most log k."""
    counts = found.tensors["counts"] @ found.tensors["members"]
    return float(torch.special.entr(counts / counts.sum()).sum())


def _label_sums(points: Int32[Tensor, "n c"], prototypes: Tensors) -> dict[str, Tensor]:
    """Sums for the classifier: a sample's label is the cluster of its nearest prototype."""
    members = prototypes["members"].argmax(dim=1)
    leading = products_of(points.shape[1], int(prototypes["counts"].sum()))
    labels = members[nearest(points, prototypes["points"])]
    sums = fit_sums(points, labels, prototypes["members"].shape[1], leading)
    return dict(zip((PRODUCTS, TARGETS), sums, strict=True))


def _with_centroids(
    server: ServerState, phase: Phase, centroids: Mapping[str, Int32[Tensor, "k c"]]
) -> ServerState:
    """The state with each start's next centroids, and room for their sums."""
    zeros = {
        start: torch.zeros(len(one), one.shape[1] + 2, dtype=torch.float64)
        for start, one in centroids.items()
    }
    return server.advance(phase, {CENTROIDS: centroids, SUMS: zeros})
