"""k-FED: one-shot federated clustering; each client sends its own centroids once.

Dennis et al., "Heterogeneity for the Win: One-Shot Federated Clustering" (2021). Each client runs
k-means on its own data and sends the centroids. The server takes those of one client, adds the
farthest of the others until there are k, and starts k-means over all centroids from these. Baseline
of CCFC (tables 1 and 2).
"""

from collections.abc import Mapping

from pydantic import PositiveInt

from coterie.clustering.kmeans import kmeans
from coterie.clustering.one_shot import farthest_first, projected_kmeans
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
)
from coterie.errors import RunError
from coterie.modules.fixed_encoder import ENCODER, FixedEncoderConfig, OnFixedEncoder
from coterie.modules.sent_centroids import CENTROIDS, sent_centroids


class KFED(OnFixedEncoder):
    """One-shot federated clustering: each client sends its centroids once (Algorithms 1 and 2)."""

    rounds = 1
    fewer = True

    class Config(FixedEncoderConfig):
        """k-FED's configuration."""

        local_clusters: PositiveInt | None = None
        """Number of clusters k' that each client finds in its own samples, at most k; by default k.
        Set it to the number of clusters that a client has, if that is small."""

    def __init__(self, config: "KFED.Config", task: Task) -> None:
        super().__init__(config, task, config.local_clusters)
        self._config = config

    def next(self, server: ServerState) -> Phase | None:
        """Return the only phase."""
        if server.round:
            return None
        return Phase(
            name="centroids",
            stage="clustering",
            round=1,
            cohort=self._config.participation,
            down=frozenset({ENCODER}),
            gathered=frozenset({CENTROIDS}),
            metrics=frozenset({"loss"}),
            specs={CENTROIDS: TensorSpec(shape=(range(self._per_client + 1), self._task.features))},
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run Algorithm 1, and return the centroids without those of too few samples."""
        points, seed = self._embedded(client, slots), derive_seed(client.seed, "kmeans")
        own = max(1, min(self._per_client, len(points) // self._task.k_anonymity))
        found = projected_kmeans(points, own, seed=seed, restarts=self._config.restarts)
        loss = found.inertia / len(points)
        return sent_centroids(points, found, self._task, {"loss": loss})

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Run Algorithm 2, with k-means until convergence where the paper takes one step of it.

        Raises:
            RunError: If too few clients answered.
        """
        every = concatenated(gathered, CENTROIDS)
        if len(every) < self._clusters:
            raise RunError(
                f"method.clusters={self._clusters}: only {len(gathered)} clients answered, with "
                f"{len(every)} centroids; raise method.local_clusters, lower privacy.k_anonymity, "
                "or see why they are absent."
            )
        first = len(next(iter(gathered.values()))[CENTROIDS])
        start = farthest_first(every, self._clusters, max(1, first))
        seed = derive_seed(server.whole("seed"), "kmeans")
        found = kmeans(every, self._clusters, seed=seed, init=start)
        return server.advance(phase, {CENTROIDS: {CENTROIDS: found.centroids}})
