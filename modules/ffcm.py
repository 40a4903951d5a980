"""FFCM: federated fuzzy c-means.

Stallmann and Wilbik, "Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm (FFCM)"
(2022). Clients run fuzzy c-means on their own data from the global centroids and send theirs, with
how much of their data each has; the server joins them. Baseline of CCFC (Yan et al., "CCFC:
Bridging Federated Clustering and Contrastive Learning", tables 1 and 2).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.clustering.fuzzy import fuzzy_means
from coterie.clustering.kmeans import kmeans
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
from coterie.networks.heads import FuzzyCentroids
from modules.fixed_encoder import (
    CENTROIDS,
    ENCODER,
    FixedEncoderConfig,
    OnFixedEncoder,
    gathered,
)

SUPPORTS = "supports"
RECORDS = frozenset({CENTROIDS, SUPPORTS})


class FFCM(OnFixedEncoder):
    """Federated fuzzy c-means."""

    class Config(FixedEncoderConfig):
        """FFCM's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 20
        """Rounds."""
        iterations: PositiveInt = 5
        """Iterations of fuzzy c-means on a client, a round."""
        fuzziness: Annotated[float, Field(gt=1.0)] = 2.0
        """m: near 1 as k-means; with 2 all centroids are nearly one in many dimensions."""
        joined_by: Literal["kmeans", "mean"] = "kmeans"
        """How the server joins the clients' centroids: k-means over all of them from the last
        global ones, or the mean of each; both weighted by supports. Where clients are unlike and
        take several iterations, their centroids of one number are no longer of one cluster."""
        support: Literal["memberships", "powers"] = "memberships"
        """What a centroid weighs: Σ u or Σ u^m of the client's samples. With `powers`, the mean and
        one iteration, a round is one of fuzzy c-means on all clients' data together."""

    def __init__(self, config: "FFCM.Config", task: Task) -> None:
        super().__init__(task, config.clusters)
        self._config = config
        self.rounds = config.rounds

    def next(self, server: ServerState) -> Phase | None:
        """The next round; before the first one a phase that finds where to start.

        Should nobody take part in that phase, it is tried once more, and then the round is over.
        """
        if server.round >= self.rounds:
            return None
        begins = CENTROIDS not in server.slots
        return Phase(
            name="centroids" if begins else "clustering", stage="clustering",
            round=server.round + 1, step=server.step, cohort=self._config.participation,
            down=frozenset({ENCODER} if begins else {ENCODER, CENTROIDS}), records=RECORDS,
            metrics=frozenset({"loss"}), ends_round=not begins or server.step > 0,
        )  # fmt: skip

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Fuzzy c-means on the client's own samples, at first from its own k-means."""
        points, config = self._points(client, slots), self._config
        if CENTROIDS in slots:
            start = slots[CENTROIDS][CENTROIDS]
        else:
            seed = derive_seed(client.seed, "kmeans")
            start = kmeans(points, self._clusters, seed=seed, restarts=config.restarts).centroids
        found = fuzzy_means(points, start, fuzziness=config.fuzziness, iterations=config.iterations)
        weights = found.memberships if config.support == "memberships" else found.powers
        return Outcome(
            records={CENTROIDS: found.centroids, SUPPORTS: weights},
            metrics={"loss": found.objective},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """One set of centroids out of all clients'."""
        every, weights = gathered(records, CENTROIDS), gathered(records, SUPPORTS)
        if CENTROIDS not in server.slots or self._config.joined_by == "kmeans":
            seed = derive_seed(self._seed(server), "kmeans", phase.round, phase.step)
            before = server.slots.get(CENTROIDS, {}).get(CENTROIDS)
            found = kmeans(
                every, self._clusters, seed=seed, restarts=self._config.restarts, weights=weights,
                init=before,
            )  # fmt: skip
            joined = found.centroids
        else:
            joined = weighted_means(every, weights, server.slots[CENTROIDS][CENTROIDS])
        return server.advance(phase, {CENTROIDS: {CENTROIDS: joined.to(every.dtype)}})

    def _head(self, centroids: Tensor) -> nn.Module:
        return FuzzyCentroids(centroids, self._config.fuzziness)


def weighted_means(every: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Each cluster's mean over the clients; where none of them has any of it, as it was before.

    Args:
        every: The clients' centroids, one client's k behind the other's, (clients · k, d).
        weights: What each weighs, float64 (clients · k,).
        before: (k, d).

    Returns:
        float64 (k, d).
    """
    count = len(before)
    shares = weights.reshape(-1, count, 1)
    total = shares.sum(dim=0)
    sums = (shares * every.reshape(-1, count, every.shape[1]).double()).sum(dim=0)
    return torch.where(total > 0, sums / total.clamp_min(torch.finfo(total.dtype).tiny), before)
