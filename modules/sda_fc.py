"""SDA-FC: the server clusters synthetic samples from each client's GAN.

Yan et al., "Federated Clustering with GAN-based Data Synthesis" (2022). Baseline of CCFC
(tables 1 and 2), with k-means (SDA-FC-KM) or fuzzy c-means (SDA-FC-FCM).
"""

from collections.abc import Mapping
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.clustering.fuzzy import fuzzy_means
from coterie.clustering.kmeans import kmeans
from coterie.contract import Phase, ServerState, Tensors, WeightedUpdate, concatenated, derive_seed
from coterie.modules.sent_centroids import CENTROIDS
from coterie.modules.synthesis import SYNTHETIC, OnSynthesis, SynthesisConfig
from coterie.networks.heads import Centroids, UnitLength
from coterie.precision import unit_rows

_ROWS = 1024
"""Samples that the server encodes at a time."""


class SDAFC(OnSynthesis):
    """Clusters of synthetic samples: each client trains a GAN and sends samples of it, once.

    Samples are compared by cosine.
    """

    class Config(SynthesisConfig):
        """SDA-FC's configuration."""

        clustering: Literal["kmeans", "fuzzy"] = "kmeans"
        """How the server clusters: by k-means, or by fuzzy c-means from k-means' centroids."""
        fuzziness: Annotated[float, Field(gt=1.0, le=100.0)] = 1.1
        """m of fuzzy c-means."""
        iterations: PositiveInt = 100
        """Iterations of fuzzy c-means."""

    _config: "SDAFC.Config"

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Cluster all synthetic samples."""
        points = self._encoded(server, concatenated(gathered, SYNTHETIC))
        config, seed = self._config, derive_seed(server.whole("seed"), "kmeans")
        centroids = kmeans(points, self._clusters, seed=seed, restarts=config.restarts).centroids
        if config.clustering == "fuzzy":
            found = fuzzy_means(
                points, centroids, fuzziness=config.fuzziness, iterations=config.iterations
            )
            centroids = found.centroids
        return server.advance(phase, {CENTROIDS: {CENTROIDS: unit_rows(centroids)}})

    def _encoded(self, server: ServerState, samples: Tensor) -> Tensor:
        """Return the samples' representations at unit length, (n, features)."""
        model = self.model_for(server, None).eval()
        with torch.no_grad():
            parts = [model(part).embedding for part in torch.split(samples, _ROWS)]
        return unit_rows(torch.cat(parts))

    def _head(self, centroids: Tensor) -> nn.Module:
        return nn.Sequential(UnitLength(), Centroids(centroids))
