"""The bases of methods that cluster the representations of a fixed encoder.

With `encoder=raw` the samples themselves are clustered, as in the papers. A pretrained encoder is
sent to each client once.
"""

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from jaxtyping import Float
from lightning import LightningModule
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from coterie.config.method import MethodConfig
from coterie.contract import (
    Client,
    Entry,
    Method,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    blank,
    load_slots,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.modules.sent_centroids import CENTROIDS
from coterie.networks.branch import cluster_count
from coterie.networks.heads import Centroids

ENCODER = "encoder"
ROLES = StateRoles(Entry(pattern="encoder.*", role=Role.AVERAGE, slot=ENCODER))
"""The encoder is a slot because clients need it; no phase sends it back."""


class FixedEncoderConfig(MethodConfig):
    """Options of k-FED and FFCM."""

    absent: ClassVar[Mapping[str, str]] = {"micro_batch_size": "it trains nothing in batches"}
    trains: ClassVar[bool] = False

    clusters: PositiveInt | None = None
    """Number of clusters k; by default the data's number of classes."""
    restarts: PositiveInt = 10
    """Restarts of a client's k-means; the best result counts."""
    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients in each phase."""


class FixedEncoder(LightningModule):
    """An encoder that is not trained."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.encoder = task.encoder.build(task.shape).requires_grad_(False)
        self.to(task.dtype)


class OnEncoder(Method):
    """A method that reads representations and trains nothing."""

    fewest_samples = 1

    def __init__(self, task: Task) -> None:
        self._task = task

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built."""
        with seeded(seed):
            module = FixedEncoder(self._task)
        ROLES.check(module)
        return ServerState(slots={ENCODER: ROLES.slot(module, ENCODER)}, metadata={"seed": seed})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the encoder, with a head once there is one."""
        module = blank(lambda: FixedEncoder(self._task))
        load_slots(module, {ENCODER: server.slots[ENCODER]})
        return Clusterer(module.encoder, self._head_of(server))

    def _head_of(self, server: ServerState) -> nn.Module | None:
        """Build the head that maps representations to cluster probabilities, if there is one."""
        return None

    def _embedded(
        self, client: Client, slots: Slots, samples: Tensor | None = None
    ) -> Float[Tensor, "n d"]:
        """Return representations, by default of the client's own samples."""
        return client.embed(self._encoder(client, slots), samples)

    def _encoder(self, client: Client, slots: Slots) -> nn.Module:
        """Return the encoder that was sent."""
        module = client.module("fixed", lambda: FixedEncoder(self._task))
        load_slots(module, {ENCODER: slots[ENCODER]})
        return module.encoder


class OnCentroids(OnEncoder):
    """A method whose clusters are centroids, the tensor `centroids` in the slot of that name."""

    def _head_of(self, server: ServerState) -> nn.Module | None:
        if CENTROIDS not in server.slots:
            return None
        return self._head(server.slots[CENTROIDS][CENTROIDS].clone())

    def _head(self, centroids: Tensor) -> nn.Module:
        """Return the head of these centroids, (k, d)."""
        return Centroids(centroids)


class OnFixedEncoder(OnCentroids):
    """A method whose clients each send a number of centroids."""

    fewer: ClassVar[bool] = False
    """Whether a client with fewer samples may send fewer centroids."""

    def __init__(self, config: FixedEncoderConfig, task: Task, local: int | None = None) -> None:
        super().__init__(task)
        self._participation = config.participation
        self._clusters = cluster_count(config.clusters, task)
        self._per_client = local or self._clusters
        self._key = "method.local_clusters" if local else "method.clusters"

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return the encoder as built.

        Raises:
            ConfigError: If a client is to find more clusters than there are in total or than it
                has samples, or the clients of a phase together find fewer than the total.
        """
        asked = f"{self._key}={self._per_client}: "
        if self._per_client > self._clusters:
            raise ConfigError(f"{asked}there are {self._clusters} clusters in all; lower it.")
        client, fewest = min(sizes.items(), key=lambda item: item[1])
        if fewest < self._per_client and not self.fewer:
            raise ConfigError(
                f"{asked}client {client} has {fewest} samples, too few for as many clusters; lower "
                "it or choose fewer clients."
            )
        called = math.ceil(self._participation * len(sizes))
        behind = self._task.k_anonymity
        found = sorted(min(size // behind, self._per_client) for size in sizes.values())
        if sum(found[-called:]) < self._clusters:
            raise ConfigError(
                f"{asked}{called} clients together find fewer than {self._clusters} clusters of "
                f"privacy.k_anonymity={behind} samples or more; raise {self._key}, lower "
                "privacy.k_anonymity, or let more clients take part."
            )
        return super().init(sizes, seed)
