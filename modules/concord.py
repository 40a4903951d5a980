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
   start counts whose clusters are most alike in size. k-means with k centroids among its
   prototypes gives other partitions of them.
4. `labels`: a ridge regression of the cut and of the best of k-means on products of pairs of
   features. What counts is whose regression tells its clusters apart by the wider margin.
5. `own_labels`, where k-means does: linear classifiers from several of its ends, fitted again to
   their own labels, of which one is chosen after some rounds.

Of photographs, representations are those of `networks.mirrored`, and what a mirror changes takes
the place of the warps. Networks part classes by planes, so step 4 is left out, and the cut is one
of the starts of step 5.
"""

from collections.abc import Mapping
from typing import Annotated

import torch
from jaxtyping import Int32
from pydantic import Field, PositiveInt
from torch import Tensor

from coterie.clustering.exact_kmeans import ClusterSums, grown, moved
from coterie.clustering.lattice import nearest, off_lattice, on_lattice, sums_of_starts
from coterie.clustering.prototypes import (
    PrototypeClusters,
    check_enough,
    cluster_prototypes,
    evenness,
    grouped_by_means,
)
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
from coterie.contract.phase import Json
from coterie.contract.tensor_spec import UNIT_LENGTH
from coterie.modules.exact_sums import (
    MOMENTS,
    POINTS,
    PRODUCTS,
    PROJECTION,
    PROTOTYPES,
    SUMS,
    WARPED,
    ExactSumsConfig,
    cluster_bounds,
    discriminant,
    draws,
    growth,
    moments_of,
    once,
    project_in,
    sums_phase,
    with_slots,
)
from coterie.modules.own_labels import (
    COUNTS,
    OWN,
    OWN_SUMS,
    SCALES,
    STARTS,
    TARGETS,
    WEIGHTS,
    own_sums,
    refitted,
    sum_bounds,
)
from coterie.modules.sent_centroids import CENTROIDS
from coterie.modules.two_partitions import MEANS, MEMBERS, compared, label_sums, own_from
from coterie.modules.views import WIDE, OnViews
from coterie.networks.branch import known_count
from coterie.networks.prototypes import LatticeProjection, Prototypes, directions
from coterie.networks.quadratic import QuadraticClassifier, largest_value
from coterie.networks.warps import WarpSizes

LABELS, CLASSIFIER = "labels", "classifier"
SETTLED, OWN_LABELS = "settled", "own_labels"
_SAMPLES_EACH = 2.5
"""Samples for each prototype, in multiples of `minimum`, below which k-means seldom makes them."""
_AGREEMENT = 0.9
"""Share of the samples whose prototypes the classifier must give their own cluster. If quadrics
cannot follow the clusters, fewer agree, and the prototypes decide alone."""
_MESSAGES = {
    MOMENTS: ((), MOMENTS),
    PROTOTYPES: ((PROJECTION, WIDE, CENTROIDS), SUMS),
    LABELS: ((PROJECTION, WIDE, PROTOTYPES, MEANS), LABELS),
    OWN_LABELS: ((PROJECTION, WIDE, PROTOTYPES, MEANS, OWN), OWN_SUMS),
}
"""What each phase sends down besides the encoder, and what it sends up."""


class Concord(OnViews):
    """Clusters that are the same however the samples are split over clients."""

    private = "coterie.modules.noisy_prototypes:PrivateConcord"

    class Config(ExactSumsConfig):
        """Concord's configuration."""

        clusters: PositiveInt | None = None
        """Number of clusters k; by default the data's number of classes or, without classes, the
        number after which the graph's eigenvalues fall most."""
        prototypes: Annotated[int, Field(ge=3)] = 2000
        """Number of prototypes; fewer if there are less than four times `minimum` samples for
        each."""
        minimum: PositiveInt = 3
        """The fewest samples, over all clients, behind a prototype; other prototypes are
        dropped."""
        restarts: PositiveInt = 5
        """Starts of k-means, which run at the same time; the one whose clusters are most equal in
        size is taken. Set 1 if clusters are known to differ much in size."""
        components: PositiveInt = 64
        """Width of the representation."""
        wide: PositiveInt = 256
        """Width of the representation for the classifier that is fitted to its own labels."""
        refits: PositiveInt = 20
        """Rounds in which that classifier is fitted."""
        neighbours: Annotated[int, Field(ge=2)] = 15
        """Neighbours of a prototype in the graph; all others if there are no more."""
        rotation: Annotated[float, Field(ge=0.0, lt=90.0)] = 10.0
        """Angle in degrees by which images are turned to either side; not for vectors."""
        scale: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.12
        """Relative change of size of each axis, to either side."""
        shear: Annotated[float, Field(ge=0.0)] = 0.18
        """Horizontal shift per unit of height, to either side."""
        translation: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.075
        """Shift along each axis, as a share of the side, to either side."""
        ridge: Annotated[float, Field(gt=0.0)] = 0.3
        """Ridge added to the warps' covariance, as a share of its mean variance."""

    def __init__(self, config: "Concord.Config", task: Task) -> None:
        sizes = WarpSizes(config.rotation, config.scale, config.shear, config.translation)
        super().__init__(task, sizes)
        self._config = config
        self._clusters = known_count(config.clusters, task)
        self._schedule = growth(config.prototypes)
        self._before_refits = 1 + self._schedule.rounds + (not self._mirrored)
        self.rounds = self._before_refits + config.refits

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder, and no sums yet."""
        server, samples = super().init(sizes, seed), sum(sizes.values())
        # Clusters of k-means differ in size: so few samples reach the minimum in all of them.
        most = int(samples / (_SAMPLES_EACH * self._config.minimum))
        check_enough(most, samples, self._clusters)
        return server

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: moments of all samples, iterations of k-means, then labels."""
        if server.round >= self.rounds or server.metadata.get(SETTLED):
            return None
        if OWN in server.slots:
            name = OWN_LABELS
        elif PROTOTYPES in server.slots:
            name = LABELS
        else:
            name = PROTOTYPES if PROJECTION in server.slots else MOMENTS
        down, up = _MESSAGES[name]
        bounds, loss = self._bounds(name, server), name == PROTOTYPES
        return sums_phase(server, name, down, up, bounds, loss=loss)

    def _bounds(self, name: str, server: ServerState) -> dict[str, Bounds]:
        """Return bounds on what a sample adds to a phase's sums.

        After the first, samples are unit vectors.
        """
        if name == MOMENTS:
            return self._moment_bounds()
        width = server.slots[PROJECTION]["directions"].shape[1]
        if name == PROTOTYPES:
            bounds = cluster_bounds(width, UNIT_LENGTH, 2.0)[SUMS]
            return dict.fromkeys(server.slots[SUMS], bounds)
        if name == OWN_LABELS:
            wide = server.slots[WIDE]["directions"].shape[1]
            return sum_bounds(wide, server.slots[OWN][SCALES])
        largest = largest_value(width)
        others = [largest] * (len(server.slots[LABELS][TARGETS]) - 1)
        # φ begins with 1: the first row of the targets counts samples.
        rows = Bounds(
            lowest=((0.0,), *((-value,) for value in others)),
            highest=((1.0,), *((value,) for value in others)),
        )
        return {PRODUCTS: Bounds(highest=largest**2), TARGETS: rows}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return the client's sums; its projected samples stay with it from task to task."""
        if phase.name == MOMENTS:
            moments, kept = self._moments(client, slots)
            return Outcome(up={MOMENTS: once(moments)}, state=kept)
        state = self._kept_points(client, slots)
        points = state[POINTS]
        if phase.name == LABELS:
            labels = label_sums(points, slots[PROTOTYPES], slots[MEANS][MEMBERS][0])
            return Outcome(up={LABELS: once(labels)}, state=state)
        if phase.name == OWN_LABELS:
            prototypes, members = slots[PROTOTYPES]["points"], slots[MEANS][MEMBERS]
            own = own_sums(state[WIDE], lambda: members[:, nearest(points, prototypes)], slots[OWN])
            return Outcome(up={OWN_SUMS: once(own)}, state=state)
        starts = slots[CENTROIDS]
        sums = dict(zip(starts, sums_of_starts(points, [*starts.values()]), strict=True))
        inertias = [ClusterSums(sums[start]).inertia(starts[start]) for start in starts]
        loss = sum(inertias) / len(inertias) / len(points)
        return Outcome(up={SUMS: once(sums)}, state=state, metrics={"loss": loss})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Compute projection and centroids, a step of k-means, the cut, or the classifier."""
        if phase.name == MOMENTS:
            return self._projected(server, phase, summed(means[MOMENTS]))
        if phase.name == LABELS:
            return self._labelled(server, phase, summed(means[LABELS]))
        if phase.name == OWN_LABELS:
            scales, number = server.slots[OWN][SCALES], self._refits(phase.round)
            own = refitted(summed(means[OWN_SUMS]), scales, number, self._config.refits)
            return server.advance(phase, own)
        starts = {start: ClusterSums(sums) for start, sums in summed(means[SUMS]).items()}
        if self._schedule.at(phase.round) is None:
            return self._clustered(server, phase, starts)
        steps = {start: self._step(server, phase, start, sums) for start, sums in starts.items()}
        return _with_centroids(server, phase, steps)

    def _refits(self, round_: int) -> int:
        """Return the number of fits to own labels after a round."""
        return round_ - self._before_refits

    def _step(
        self, server: ServerState, phase: Phase, start: str, sums: ClusterSums
    ) -> Int32[Tensor, "k c"]:
        """Return k-means' next centroids, more of them where the schedule says so."""
        wanted, generator = self._schedule.at(phase.round), draws(server, start, phase.round)
        if wanted and wanted > len(sums.counts):
            return grown(sums, wanted, 4 * self._config.minimum, generator)
        return moved(sums, generator)

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster, which every kind of sums contains."""
        if LABELS in sums:
            return {LABELS: sums[LABELS][TARGETS][0]}
        if OWN_SUMS in sums:
            return {OWN_SUMS: sums[OWN_SUMS][COUNTS].flatten()}
        return {SUMS: torch.cat([s[:, -1] for s in sums[SUMS].values()])} if SUMS in sums else {}

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with projection and prototypes once there are any."""
        model = super().model_for(server, client)
        if OWN in server.slots and self._refits(server.round) > 0:
            project_in(model, server, WIDE)
            weights = server.slots[OWN][WEIGHTS][0]
            model.head = QuadraticClassifier(weights, len(weights) - 1)
            return model
        project_in(model, server)
        if CLASSIFIER in server.slots:
            width = server.slots[PROJECTION]["directions"].shape[1]
            model.head = QuadraticClassifier(server.slots[CLASSIFIER][WEIGHTS], width)
        elif PROTOTYPES in server.slots:
            model.head = Prototypes(**server.slots[PROTOTYPES])
        return model

    def _projected(self, server: ServerState, phase: Phase, sums: Tensors) -> ServerState:
        """Set the projection, and centroids drawn from the samples' moments."""
        moments, config = moments_of(sums), self._config
        within = sums[WARPED] / (4 * moments.count) if WARPED in sums else None
        widest = max(config.components, config.wide)
        steps = discriminant(moments.covariance, widest, within, config.ridge)
        mean = on_lattice(moments.mean)
        slots = {
            PROJECTION: {"mean": mean, "directions": directions(steps[:, : config.components])},
            WIDE: {"mean": mean, "directions": directions(steps[:, : config.wide])},
        }
        project = LatticeProjection(**slots[PROJECTION])
        most = max(1, moments.count // (4 * config.minimum))
        number, centroids = min(self._schedule.stages[0][0], most), {}
        for start in map(str, range(config.restarts)):
            drawn = moments.draws(number, draws(server, "starts", start))
            centroids[start] = on_lattice(project(off_lattice(drawn)))
        return _with_centroids(with_slots(server, slots), phase, centroids)

    def _clustered(
        self, server: ServerState, phase: Phase, starts: Mapping[str, ClusterSums]
    ) -> ServerState:
        """Cut each start's prototypes into clusters, and keep the most even ones.

        If the number of clusters is not configured, the first start's cut decides it.
        """
        first, *others = starts.values()
        cuts = [self._cut(server, first, self._clusters)]
        number = cuts[0].tensors[MEMBERS].shape[1]
        found = max([*cuts, *(self._cut(server, sums, number) for sums in others)], key=evenness)
        points, counts = found.tensors["points"], found.tensors["counts"]
        seed = derive_seed(server.whole("seed"), "means")
        by_means = grouped_by_means(points, counts, number, seed=seed, most=STARTS)
        if self._mirrored:
            cut = found.tensors[MEMBERS].argmax(dim=1)[None]
            slots = own_from(server, found.tensors, torch.cat([cut, by_means[: STARTS - 1]]))
        else:
            labels = label_sums(points[:0], found.tensors, by_means[0])
            slots = {PROTOTYPES: found.tensors, MEANS: {MEMBERS: by_means}, LABELS: labels}
        return server.advance(phase, slots, {"eigenvalues": [*found.eigenvalues]})

    def _cut(
        self, server: ServerState, sums: ClusterSums, clusters: int | None
    ) -> PrototypeClusters:
        """Return the prototypes of one start and their clusters."""
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
        """Choose the cut's or k-means' partition by the wider margin of its classifiers.

        Quadrics count if they agree with the prototypes that their labels come from.
        """
        prototypes, by_means = server.slots[PROTOTYPES], server.slots[MEANS][MEMBERS]
        found = compared(sums, prototypes, by_means[0])
        metadata: dict[str, Json] = {"margins": [found.of_cut, found.of_means]}
        if found.of_means > found.of_cut:
            return server.advance(phase, own_from(server, prototypes, by_means), metadata)
        slots = {CLASSIFIER: {WEIGHTS: found.weights}} if found.agreement >= _AGREEMENT else {}
        return server.advance(
            phase, slots, {**metadata, "agreement": found.agreement, SETTLED: True}
        )


def _with_centroids(
    server: ServerState, phase: Phase, centroids: Mapping[str, Int32[Tensor, "k c"]]
) -> ServerState:
    """Return the state with each start's next centroids, and zeros for their sums."""
    zeros = {
        start: torch.zeros(len(one), one.shape[1] + 2, dtype=torch.float64)
        for start, one in centroids.items()
    }
    return server.advance(phase, {CENTROIDS: centroids, SUMS: zeros})
