"""Prototypes: one-shot clusters from many local means, by their neighbour graph.

Coterie's own baseline, a sibling of k-FED. Each client runs k-means with many centroids on its own
samples and sends, once, those that stand for at least K of them. The server builds the neighbour
graph of McInnes et al., "UMAP: Uniform Manifold Approximation and Projection for Dimension
Reduction" (2018), over the prototypes of all clients and cuts it, as in Ng et al., "On Spectral
Clustering: Analysis and an algorithm" (2001). A sample takes the cluster of the prototypes near it.
With `clustering=hdbscan` clusters are where prototypes lie densely, and what lies elsewhere is an
outlier.

As a set, the prototypes hardly depend on how the samples are split. Concord's do not at all. Under
`privacy.dp` clients send sums in place of them (`noisy_prototypes`).
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from coterie.clustering.dense_prototypes import dense_clusters
from coterie.clustering.kmeans import counted_means, kmeans
from coterie.clustering.lattice import LIMIT, on_lattice
from coterie.clustering.prototypes import check_enough, cluster_prototypes, sizes
from coterie.contract import (
    Client,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
    TensorSpec,
    WeightedUpdate,
    concatenated,
    derive_seed,
    fewest,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.modules.exact_sums import MOMENTS, POINTS, PROTOTYPES, project_in, with_slots
from coterie.modules.fixed_encoder import ENCODER, FixedEncoderConfig, OnEncoder
from coterie.modules.noisy_prototypes import NoisyPrototypes
from coterie.networks.prototypes import BoundedPrototypes
from coterie.networks.prototypes import Prototypes as PrototypesHead

COUNTS, SCATTER = "counts", "scatter"
_COMPONENTS = 64
"""Width of the representation under differential privacy: noise has as many coordinates."""


class Prototypes(OnEncoder):
    """One-shot clusters from many local means of at least K samples, sent once."""

    rounds = 1

    class Config(FixedEncoderConfig):
        """Options of prototypes."""

        sums: ClassVar[bool] = True  # under differential privacy; else it averages nothing

        clusters: PositiveInt | None = None
        """Number of clusters k; by default the data's number of classes or, without classes, the
        number after which the graph's eigenvalues fall most."""
        clustering: Literal["cut", "hdbscan"] = "cut"
        """`cut`: the graph is cut. `hdbscan`: HDBSCAN finds clusters and their number, and samples
        that belong to none are outliers."""
        min_cluster_size: Annotated[int, Field(ge=2)] | None = None
        """The fewest prototypes of a cluster of HDBSCAN's; by default a fiftieth of all, at least
        5."""
        prototypes: PositiveInt = 500
        """Prototypes of a client; fewer if it has less than twice `minimum` samples for each."""
        minimum: PositiveInt = 3
        """K, the fewest samples behind a prototype; others stay with the client."""
        neighbours: Annotated[int, Field(ge=2)] = 15
        """Neighbours of a prototype in the graph; all others if there are no more."""
        restarts: PositiveInt = 1
        """Restarts of a client's k-means; the best result counts."""

        @model_validator(mode="after")
        def _check_clustering(self) -> Self:
            if self.clustering == "hdbscan" and self.clusters is not None:
                raise ValueError("clusters: HDBSCAN finds their number; leave it out.")
            if self.clustering == "cut" and self.min_cluster_size is not None:
                raise ValueError("min_cluster_size: it needs clustering=hdbscan; leave it out.")
            return self

    def __init__(self, config: "Prototypes.Config", task: Task) -> None:
        super().__init__(task)
        self._config, self._minimum = config, max(config.minimum, task.k_anonymity)
        self._dense = config.clustering == "hdbscan"
        self._clusters = None if self._dense else config.clusters or task.classes or None
        if self._clusters == 1:
            raise ConfigError("method.clusters=1: there is nothing to tell apart; set 2 or more.")
        self._noisy: NoisyPrototypes | None = None
        if task.clip is not None and self._dense:
            raise ConfigError(
                "method.clustering=hdbscan: under privacy.dp there are too few prototypes to tell "
                "dense from sparse; take method.clustering=cut, or leave out privacy.dp."
            )
        if task.clip is not None:
            self._noisy = NoisyPrototypes(
                task.clip,
                task.features,
                clusters=self._clusters,
                prototypes=config.prototypes,
                components=_COMPONENTS,
                neighbours=config.neighbours,
                cohort=config.participation,
            )
            self.rounds = self._noisy.rounds

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built and, under differential privacy, moments of zero."""
        server = super().init(sizes, seed)
        if self._noisy is None:
            enough = [size for size in sizes.values() if size >= self._minimum]
            most = sum(max(1, size // (2 * self._minimum)) for size in enough)
            check_enough(most, sum(sizes.values()), self._clusters)
            return server
        return with_slots(server, {MOMENTS: self._noisy.start()})

    def next(self, server: ServerState) -> Phase | None:
        """Return the only phase; under differential privacy, moments and then iterations."""
        if self._noisy is not None:
            return self._noisy.next(server)
        if server.round:
            return None
        most = self._config.prototypes
        number = TensorSpec(
            as_long_as=POINTS,
            shape=(range(most + 1),),
            dtype=torch.float64,
            lowest=0.0,
            highest=1.0,
            per_sample=True,
        )
        width = self._task.features
        return Phase(
            name=PROTOTYPES,
            stage="clustering",
            round=1,
            cohort=self._config.participation,
            down=frozenset({ENCODER}),
            gathered=frozenset({POINTS, COUNTS, SCATTER}),
            metrics=frozenset({"loss"}),
            specs={
                # The server puts them on the lattice, where distances are at most 2 LIMIT √d.
                POINTS: TensorSpec(shape=(range(most + 1), width), lowest=-LIMIT, highest=LIMIT),
                COUNTS: replace(number, lowest=self._minimum),
                SCATTER: replace(number, highest=width * (2 * LIMIT) ** 2),
            },
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Return means of at least K of the client's samples, with their numbers and scatter."""
        if self._noisy is not None:
            return self._noisy.client(client, phase, slots, partial(self._embedded, client, slots))
        points, config = self._embedded(client, slots), self._config
        most = max(1, len(points) // (2 * self._minimum))
        found = kmeans(
            points,
            min(config.prototypes, most),
            seed=derive_seed(client.seed, "kmeans"),
            restarts=config.restarts,
        )
        prototypes, _ = counted_means(points, found)
        counts, scatter = sizes(points, prototypes, found.assignments)
        kept = counts >= self._minimum
        return Outcome(
            gathered={
                POINTS: prototypes[kept],
                COUNTS: counts[kept],
                SCATTER: scatter[kept],
            },
            metrics={"loss": found.inertia / len(points)},
            smallest=dict.fromkeys((POINTS, COUNTS, SCATTER), fewest(counts[kept])),
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Build the graph of all clients' prototypes, and cut it, or find where they lie densely.

        Raises:
            RunError: If there are too few.
        """
        if self._noisy is not None:
            return self._noisy.after(server, phase, means)
        points, counts, scatter = (
            concatenated(gathered, name) for name in (POINTS, COUNTS, SCATTER)
        )
        if self._dense:
            least = self._config.min_cluster_size
            dense = dense_clusters(on_lattice(points), counts, scatter, least)
            return server.advance(phase, {PROTOTYPES: dense})
        found = cluster_prototypes(
            on_lattice(points),
            counts,
            scatter,
            clusters=self._clusters,
            neighbours=self._config.neighbours,
            seed=derive_seed(server.whole("seed"), "cut"),
        )
        return server.advance(
            phase, {PROTOTYPES: found.tensors}, {"eigenvalues": [*found.eigenvalues]}
        )

    def group_sizes(self, sums: Slots) -> Mapping[str, Tensor]:
        """Return the number of samples of each cluster; only differential privacy has sums."""
        return {} if self._noisy is None else self._noisy.group_sizes(sums)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with the projection that noise needs, and prototypes if any."""
        model = super().model_for(server, client)
        model.outliers = self._dense
        project_in(model, server)
        return model

    def _head_of(self, server: ServerState) -> nn.Module | None:
        if PROTOTYPES not in server.slots:
            return None
        head = BoundedPrototypes if self._dense else PrototypesHead
        return head(**server.slots[PROTOTYPES])
