"""DEC: an autoencoder's clusters, sharpened by what they are surest of, by federated averaging.

Xie, Girshick and Farhadi, "Unsupervised Deep Embedding for Clustering Analysis" (2016). Clients
train an autoencoder; then each sends the centroids of its own embedding, and the server clusters
these. After that a round has two phases: clients send how often they find each cluster, and train
encoder and centroids on the target distribution that follows from this. With one client that is
DEC, whose target is renewed once a round.
"""

from collections.abc import Mapping
from dataclasses import replace

import torch
from pydantic import NonNegativeInt, PositiveInt

from coterie.clustering.kmeans import kmeans
from coterie.contract import (
    Client,
    Entry,
    Method,
    Outcome,
    Phase,
    Plan,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    TensorSpec,
    WeightedUpdate,
    averaged,
    blank,
    derive_seed,
    load_slots,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.modules.autoencoder import Autoencoder, Reconstruction
from coterie.modules.sent_centroids import (
    CENTROIDS,
    check_sizes,
    joined_centroids,
    sent_centroids,
)
from coterie.modules.soft_clusters import SelfTraining, SelfTrainingConfig
from coterie.networks.branch import cluster_count

STAGE, FREQUENCIES, FRESH = "clustering", "frequencies", "fresh"
"""The second stage; the slot of f/n; metadata: whether that slot is of the current weights."""
LAST_STEP = 2
"""The step with which a round ends, whatever is missing."""
ROLES = StateRoles(
    Entry(pattern="encoder.*", role=Role.AVERAGE, slot="encoder"),
    Entry(pattern="clusters.*", role=Role.AVERAGE, slot=CENTROIDS),
    Entry(pattern="frequencies.*", role=Role.AVERAGE, slot=FREQUENCIES),
    Entry(pattern="global_model.*", role=Role.RESET),
)
"""Those of the second stage; the first one's are the autoencoder's."""


class DEC(Method):
    """Deep embedded clustering: an autoencoder, then clusters that learn from themselves.

    Clients keep nothing.
    """

    class Config(SelfTrainingConfig):
        """DEC's configuration."""

        pretrain_rounds: NonNegativeInt = 10
        """Rounds of the autoencoder, before those of clusters."""
        pretrain_epochs: PositiveInt = 10
        """Local epochs per round of the autoencoder."""
        rounds: PositiveInt = 50
        """Rounds of clusters; each has a new target distribution."""
        epochs: PositiveInt = 1
        """Local epochs per round of clusters."""
        restarts: PositiveInt = 20
        """Restarts of each k-means; the best result counts."""

    def __init__(self, config: "DEC.Config", task: Task) -> None:
        if not config.pretrain_rounds and config.latent is not None:
            raise ConfigError(
                f"method.pretrain_rounds=0: the layer of method.latent={config.latent} would have "
                "random weights; set method.latent=null and take a pretrained encoder, or pretrain."
            )
        self.rounds = config.pretrain_rounds + config.rounds
        first = {"rounds": self.rounds, "epochs": config.pretrain_epochs}
        self._autoencoder = Autoencoder(config.model_copy(update=first), task)
        self._config, self._task = config, task
        self._clusters = cluster_count(config.clusters, task)
        self._width = config.latent or task.features

    def build(self) -> Reconstruction:
        """Return the networks and the loss of the first stage."""
        return self._autoencoder.build()

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a freshly initialised autoencoder, and equally frequent clusters.

        Raises:
            ConfigError: If a client has fewer samples than clusters.
        """
        check_sizes(sizes, self._clusters)
        start, module = self._autoencoder.init(sizes, seed), blank(self._training)
        ROLES.check(module)
        slots = {**start.slots, FREQUENCIES: ROLES.slot(module, FREQUENCIES)}
        return replace(start, slots=slots, metadata={**start.metadata, "seed": seed, FRESH: False})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase: of the autoencoder, or of a round of clusters.

        Such a round begins with what the server lacks, at first the centroids and then in each
        round the frequencies, and ends with training. If nobody takes part in a phase, it is
        repeated, up to the round's third phase.
        """
        if server.round < self._config.pretrain_rounds or server.round >= self.rounds:
            return self._autoencoder.next(server)
        training = Phase(
            name=STAGE,
            stage=STAGE,
            round=server.round + 1,
            step=server.step,
            cohort=self._config.participation,
            down=frozenset({"encoder", CENTROIDS, FREQUENCIES}),
            up=self._autoencoder.trained(server) - {"decoder"} | {CENTROIDS},
            metrics=frozenset({"loss"}),
        )
        if server.metadata[FRESH]:
            return training
        first = replace(training, metrics=frozenset(), ends_round=server.step >= LAST_STEP)
        if CENTROIDS in server.slots:
            down, up = training.down - {FREQUENCIES}, frozenset({FREQUENCIES})
            return replace(first, name=FREQUENCIES, down=down, up=up)
        spec = TensorSpec(shape=(range(self._clusters + 1), self._width), dtype=torch.float32)
        return replace(
            first,
            name=CENTROIDS,
            down=frozenset({"encoder"}),
            up=frozenset(),
            gathered=frozenset({CENTROIDS}),
            specs={CENTROIDS: spec},
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train the autoencoder, or find centroids, or measure f/n, or train on the target."""
        if phase.stage != STAGE:
            return self._autoencoder.client(client, phase, slots)
        module = client.module(STAGE, self._training)
        load_slots(module, slots)
        if phase.gathered:
            embedded, seed = client.embed(module.encoder), derive_seed(client.seed, "kmeans")
            found = kmeans(embedded, self._clusters, seed=seed, restarts=self._config.restarts)
            return sent_centroids(embedded, found, self._task)
        metrics: Mapping[str, float] = {}
        if FREQUENCIES in phase.up:
            q = client.embed(module.assigner())
            module.frequencies.running_mean.copy_(q.double().mean(dim=0))
        else:
            module.start()
            plan = Plan(batch_size=self._config.batch_size, epochs=self._config.epochs)
            metrics = client.fit(module, plan).metrics
        up = ROLES.contributions(module, phase.up, weight=len(client.data))
        return Outcome(up=up, metrics=metrics)

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Average the slots by numbers of samples; cluster the centroids of all clients."""
        slots = averaged(means)
        if phase.gathered:
            seed = derive_seed(server.whole("seed"), "kmeans", phase.round, phase.step)
            found = joined_centroids(
                gathered, self._clusters, self._task, seed=seed, restarts=self._config.restarts
            )
            slots[CENTROIDS] = {"clusters.centroids": found.to(self._task.dtype)}
        return server.advance(phase, slots, {FRESH: FREQUENCIES in means})

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, with the centroids once there are any."""
        module = blank(self._training)
        known = {"encoder", CENTROIDS} & server.slots.keys()
        load_slots(module, {slot: server.slots[slot] for slot in known})
        return Clusterer(module.encoder, module.clusters if CENTROIDS in known else None)

    def _training(self) -> SelfTraining:
        return SelfTraining(self._config, self._task)
