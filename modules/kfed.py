"""k-FED: clusters of all clients' data from one message of each, its own centroids.

Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering" (2021). Each client runs
k-means on its own data and sends the centroids, once; the server takes those of one client, adds
what is farthest until there are k, and runs k-means on all of them from there. Baseline of CCFC
(Yan et al., "CCFC: Bridging Federated Clustering and Contrastive Learning", tables 1 and 2).
"""

from collections.abc import Mapping

from pydantic import PositiveInt
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.clustering.one_shot import farthest_first, projected_kmeans
from coterie.contract import (
    Client,
    Mean,
    Outcome,
    Phase,
    ServerState,
    Slots,
    Task,
    Tensors,
    derive_seed,
)
from coterie.errors import RunError
from coterie.networks.heads import Centroids
from modules.fixed_encoder import (
    CENTROIDS,
    ENCODER,
    FixedEncoderConfig,
    OnFixedEncoder,
    gathered,
)


class KFED(OnFixedEncoder):
    """One-shot federated clustering, algorithms 1 and 2."""

    rounds = 1

    class Config(FixedEncoderConfig):
        """k-FED's configuration."""

        local_clusters: PositiveInt | None = None
        """Clusters k' that each client finds among its own samples, at most k; by default k. The
        fewer, the better it works where clients have few clusters each."""

    def __init__(self, config: "KFED.Config", task: Task) -> None:
        super().__init__(config, task, config.local_clusters)
        self._config = config

    def next(self, server: ServerState) -> Phase | None:
        """The only phase."""
        if server.round:
            return None
        return Phase(
            name="centroids", stage="clustering", round=1, cohort=self._config.participation,
            down=frozenset({ENCODER}), records=frozenset({CENTROIDS}), metrics=frozenset({"loss"}),
        )  # fmt: skip

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Algorithm 1: the centroids of the client's own samples."""
        points, seed = self._points(client, slots), derive_seed(client.seed, "kmeans")
        found = projected_kmeans(
            points, self._per_client, seed=seed, restarts=self._config.restarts
        )
        loss = found.inertia / len(points)
        return Outcome(records={CENTROIDS: found.centroids}, metrics={"loss": loss})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Algorithm 2, with k-means to its end where the paper has one step of it.

        Raises:
            RunError: If too few clients answered.
        """
        every = gathered(records, CENTROIDS)
        if len(every) < self._clusters:
            raise RunError(
                f"method.clusters={self._clusters}: only {len(records)} clients answered, with "
                f"{len(every)} centroids; raise method.local_clusters or see why they are absent."
            )
        start = farthest_first(every, self._clusters, self._per_client)
        seed = derive_seed(self._seed(server), "kmeans")
        found = kmeans(every, self._clusters, seed=seed, init=start)
        return server.advance(phase, {CENTROIDS: {CENTROIDS: found.centroids}})

    def _head(self, centroids: Tensor) -> nn.Module:
        return Centroids(centroids)
