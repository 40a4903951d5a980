"""FFCM: federated fuzzy c-means.

Stallmann and Wilbik, "Towards Federated Clustering: A Federated Fuzzy c-Means Algorithm (FFCM)"
(2022). Clients run fuzzy c-means on their own data from the global centroids, and send their
centroids with the amount of data (support) of each; the server joins them. Baseline of CCFC
(tables 1 and 2).
"""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.clustering.fuzzy import fuzzy_means, ratio_where_positive
from coterie.clustering.kmeans import kmeans
from coterie.clustering.one_shot import projected_kmeans
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
from coterie.errors import RunError
from coterie.modules.fixed_encoder import ENCODER, FixedEncoderConfig, OnFixedEncoder
from coterie.modules.sent_centroids import CENTROIDS, withheld
from coterie.networks.heads import FuzzyCentroids

SUPPORTS = "supports"
GATHERED = frozenset({CENTROIDS, SUPPORTS})
_ROUNDING = 1e-9
ANCHOR = 1e-6
"""Weight of a global centroid among the clients' centroids, in samples."""


class FFCM(OnFixedEncoder):
    """Federated fuzzy c-means."""

    class Config(FixedEncoderConfig):
        """FFCM's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 20
        """Rounds."""
        iterations: PositiveInt = 5
        """Iterations of fuzzy c-means on a client per round."""
        fuzziness: Annotated[float, Field(gt=1.0, le=100.0)] = 2.0
        """m: close to k-means near 1; with 2 and many dimensions all centroids nearly coincide."""
        joined_by: Literal["kmeans", "mean"] = "kmeans"
        """How the server combines the clients' centroids: by k-means over all of them from the last
        global ones, or by the mean of each; both weighted by supports. If clients differ and take
        several iterations, centroids of the same number need not belong to the same cluster."""
        support: Literal["memberships", "powers"] = "memberships"
        """Weight of a centroid: Σ u or Σ u^m over the client's samples. With `powers`, `mean` and
        one iteration, a round equals one iteration of fuzzy c-means on all clients' data."""

    def __init__(self, config: "FFCM.Config", task: Task) -> None:
        super().__init__(config, task)
        self._config = config
        self._supports = TensorSpec(
            shape=(self._clusters,),
            dtype=torch.float64,
            lowest=0.0,
            highest=1.0 + 1e-6,
            per_sample=True,
        )
        self.rounds = config.rounds

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round, or first the phase that finds initial centroids.

        If nobody takes part in that phase, it is repeated once, and then the round ends.
        """
        if server.round >= self.rounds:
            return None
        begins = CENTROIDS not in server.slots
        return Phase(
            name="centroids" if begins else "clustering",
            stage="clustering",
            round=server.round + 1,
            step=server.step,
            cohort=self._config.participation,
            down=frozenset({ENCODER} if begins else {ENCODER, CENTROIDS}),
            gathered=GATHERED,
            metrics=frozenset({"loss"}),
            specs={
                CENTROIDS: TensorSpec(shape=(self._clusters, self._task.features)),
                SUPPORTS: self._supports,
            },
            ends_round=not begins or server.step > 0,
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run fuzzy c-means on the client's own samples; the first phase starts from k-means.

        A centroid of which one sample has more than 1/k of the weight, for k-anonymity k, is sent
        as zeros with the support 0.
        """
        points, config = self._embedded(client, slots), self._config
        if CENTROIDS in slots:
            start = slots[CENTROIDS][CENTROIDS]
        else:
            seed = derive_seed(client.seed, "kmeans")
            own = projected_kmeans(points, self._clusters, seed=seed, restarts=config.restarts)
            start = own.centroids
        found = fuzzy_means(points, start, fuzziness=config.fuzziness, iterations=config.iterations)
        weights = found.memberships if config.support == "memberships" else found.powers
        # Of n samples that count alike, none has more than 1/n of a centroid's weight.
        samples = (found.powers / found.largest).nan_to_num(0.0)
        kept = self._task.enough((samples + _ROUNDING).floor())
        return Outcome(
            gathered={
                CENTROIDS: found.centroids * kept[:, None],
                SUPPORTS: torch.where(kept, weights, 0.0),
            },
            metrics={"loss": found.objective},
            smallest=dict.fromkeys(GATHERED, fewest(samples[kept].int().clamp_min(1))),
            note=withheld(kept, self._task),
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Combine all clients' centroids into one set."""
        every, weights = concatenated(gathered, CENTROIDS), concatenated(gathered, SUPPORTS)
        before = server.slots.get(CENTROIDS, {}).get(CENTROIDS)
        if before is not None and self._config.joined_by == "mean":
            joined = weighted_means(every, weights, before)
        else:
            seed = derive_seed(server.whole("seed"), "kmeans", phase.round, phase.step)
            joined = self._clustered(every, weights, before, seed)
        return server.advance(phase, {CENTROIDS: {CENTROIDS: joined.to(every.dtype)}})

    def _clustered(
        self, every: Tensor, weights: Tensor, before: Tensor | None, seed: int
    ) -> Tensor:
        """Run k-means over all centroids, from the last global ones if there are any.

        The global centroids join with the weight `ANCHOR`, so that a cluster without data in this
        round keeps its centroid.

        Raises:
            RunError: If there are none, and clients have sent too few.
        """
        if before is None:
            if (many := int((weights > 0).sum())) < self._clusters:
                raise RunError(
                    f"method.clusters={self._clusters}: clients sent only {many} centroids; lower "
                    "it, or privacy.k_anonymity, or see why clients are absent."
                )
            restarts = self._config.restarts
            found = kmeans(every, self._clusters, seed=seed, restarts=restarts, weights=weights)
            return found.centroids
        every = torch.cat([before.to(every.dtype), every])
        weights = torch.cat([weights.new_full((len(before),), ANCHOR), weights])
        return kmeans(every, self._clusters, seed=seed, weights=weights, init=before).centroids

    def _head(self, centroids: Tensor) -> nn.Module:
        return FuzzyCentroids(centroids, self._config.fuzziness)


def weighted_means(every: Tensor, weights: Tensor, before: Tensor) -> Tensor:
    """Return each cluster's weighted mean over clients; without weight it keeps its centroid.

    Args:
        every: The clients' centroids, k per client in client order, (clients · k, d).
        weights: Their weights, float64 (clients · k,).
        before: The last global centroids (k, d).

    Returns:
        float64 (k, d).
    """
    count = len(before)
    shares = weights.reshape(-1, count, 1)
    sums = (shares * every.reshape(-1, count, every.shape[1]).double()).sum(dim=0)
    return ratio_where_positive(sums, shares.sum(dim=(0, 2)), before.double())
