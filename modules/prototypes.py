"""Prototypes: one-shot clusters from many local means, by their neighbour graph.

Coterie's own baseline, a sibling of k-FED. Each client runs k-means with many centroids on its own
samples and sends, once, those that stand for at least K of them. The server builds the neighbour
graph of McInnes et al., "UMAP: Uniform Manifold Approximation and Projection for Dimension
Reduction" (2018), over the prototypes of all clients and cuts it, as in Ng et al., "On Spectral
Clustering: Analysis and an algorithm" (2001). A sample takes the cluster of the prototypes near it.
With `clustering=hdbscan` clusters are where prototypes lie densely, and what lies elsewhere is an
outlier.

As a set, the prototypes hardly depend on how the samples are split. Concord's do not at all.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import nn

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
from coterie.modules.exact_sums import POINTS, PROTOTYPES
from coterie.modules.fixed_encoder import ENCODER, FixedEncoderConfig, OnEncoder
from coterie.networks.branch import known_count
from coterie.networks.prototypes import BoundedPrototypes
from coterie.networks.prototypes import Prototypes as PrototypesHead

COUNTS, SCATTER = "counts", "scatter"


class Prototypes(OnEncoder):
    """One-shot clusters from many local means of at least K samples, sent once."""

    rounds = 1
    private = "coterie.modules.noisy_prototypes:PrivatePrototypes"

    class Config(FixedEncoderConfig):
        """Options of prototypes."""

        sums: ClassVar[bool] = True  # in the private form; else it averages nothing

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
        self._clusters = None if self._dense else known_count(config.clusters, task)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built."""
        server = super().init(sizes, seed)
        enough = [size for size in sizes.values() if size >= self._minimum]
        most = sum(max(1, size // (2 * self._minimum)) for size in enough)
        check_enough(most, sum(sizes.values()), self._clusters)
        return server

    def next(self, server: ServerState) -> Phase | None:
        """Return the only phase."""
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

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with prototypes once there are any."""
        model = super().model_for(server, client)
        model.outliers = self._dense
        return model

    def _head_of(self, server: ServerState) -> nn.Module | None:
        if PROTOTYPES not in server.slots:
            return None
        head = BoundedPrototypes if self._dense else PrototypesHead
        return head(**server.slots[PROTOTYPES])
