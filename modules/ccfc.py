"""CCFC and SCFC: cluster-contrastive and sample-contrastive federated clustering.

Yan et al., "CCFC: Bridging Federated Clustering and Contrastive Learning", Algorithm 1. Clients
label their samples by the nearest global centroid, train samples of one label to be similar, and
send their network and k centroids of their own. The server averages the networks and clusters the
centroids. SCFC uses SimSiam's loss in place of the clusters'; it can warm up CCFC, as in the
authors' code.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.contract import (
    Client,
    Entry,
    Method,
    Outcome,
    Phase,
    Plan,
    Role,
    Schedule,
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
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.tensor_spec import UNIT_LENGTH
from coterie.errors import ConfigError
from coterie.losses.cosine import Pairs
from coterie.modules.cluster_siamese import METRICS, ClusterSiamese, SiameseConfig, Stage, in_metric
from coterie.modules.sent_centroids import (
    CENTROIDS,
    check_sizes,
    joined_centroids,
    sent_centroids,
)
from coterie.networks.branch import cluster_count
from coterie.networks.heads import Centroids, UnitLength

NETWORKS = frozenset({"encoder", "predictor"})
ROLES = StateRoles(
    *(Entry(pattern=f"online.{part}.*", role=Role.AVERAGE, slot=part) for part in NETWORKS),
    Entry(pattern="global_model.*", role=Role.RESET),
    Entry(pattern=CENTROIDS, role=Role.RESET),
    Entry(pattern="augment.*", role=Role.RESET),
)
"""The local network is averaged; a client gets the global one and the centroids in each task."""


class _MinesCentroids(Method):
    """The federated part of CCFC and SCFC: stages in order, the last of which mines centroids."""

    def __init__(
        self,
        config: SiameseConfig,
        task: Task,
        schedule: Schedule[Stage],
        pairs: Pairs = "exclude_self",
    ) -> None:
        self._config, self._task, self._schedule, self._pairs = config, task, schedule, pairs
        self._clusters = cluster_count(config.clusters, task)
        self.rounds = schedule.rounds

    def build(self) -> ClusterSiamese:
        """Return the networks and the loss of the first stage."""
        return self._module(self._schedule.at(1) or "samples")

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a freshly initialised global network.

        Raises:
            ConfigError: If a client has fewer samples than clusters, or `alone` is not a client.
        """
        check_sizes(sizes, self._clusters)
        if self._config.alone is not None and self._config.alone not in sizes:
            raise ConfigError(
                f"method.alone={self._config.alone}: there are {len(sizes)} clients; choose 0 to "
                f"{len(sizes) - 1}."
            )
        with seeded(seed):
            module = self._module("samples")
        ROLES.check(module)
        return ServerState(slots=ROLES.slots(module, NETWORKS), metadata={"seed": seed})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round of the current stage.

        Stage "clusters" starts with a phase that finds centroids. If nobody takes part in it, the
        phase is repeated once, and then the round ends.
        """
        number = server.round + 1
        stage = self._schedule.at(number)
        if stage is None:
            return None
        alone = self._config.alone if number >= self._config.alone_from else None
        cohort = self._config.participation if alone is None else (alone,)
        mined = frozenset({CENTROIDS}) if stage == self._schedule.last else frozenset()
        training = Phase(
            name=stage,
            stage=stage,
            round=number,
            step=server.step,
            cohort=cohort,
            down=NETWORKS | mined if stage == "clusters" else NETWORKS,
            up=NETWORKS,
            gathered=mined,
            metrics=METRICS,
            specs=self._specs() if mined else {},
        )
        if stage != "clusters" or CENTROIDS in server.slots:
            return training
        return replace(
            training,
            name="centroids",
            down=frozenset({"encoder"}),
            up=frozenset(),
            metrics=frozenset(),
            ends_round=server.step > 0,
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run lines 5 to 14 of Algorithm 1; in the phase that only finds centroids, line 11."""
        stage: Stage = "clusters" if phase.stage == "clusters" else "samples"
        module = client.module(stage, lambda: self._module(stage))
        load_slots(module, slots)
        if not phase.up:
            return replace(self._mine(client, module), state=client.state)
        module.start(_of_stage(client.state or {}, stage))
        if self._config.initial == "independent" and (phase.round, stage) == (1, "samples"):
            with seeded(client.seed):
                module.online.load_state_dict(self._module(stage).online.state_dict())
        plan = Plan(batch_size=self._config.batch_size, epochs=self._config.epochs)
        fit = client.fit(module, plan)
        adam = module.remember() if self._config.keep_optimizer else {}
        return replace(
            self._mine(client, module) if phase.gathered else Outcome(),
            up=ROLES.contributions(module, phase.up, weight=len(client.data)),
            state={f"{stage}/{name}": value for name, value in adam.items()} or None,
            metrics=fit.metrics,
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Average the networks by numbers of samples, eq. (8), and cluster all centroids."""
        slots = averaged(means)
        if phase.gathered:
            seed = derive_seed(server.whole("seed"), "kmeans", phase.round, phase.step)
            restarts = self._config.restarts
            found = joined_centroids(
                gathered, self._clusters, self._task, seed=seed, restarts=restarts
            )
            slots[CENTROIDS] = {CENTROIDS: found}
        return server.advance(phase, slots)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, with the global centroids once there are any.

        Before that, under `metric=cosine`, representations have unit length, for the evaluation's
        k-means.
        """
        module = blank(lambda: self._module("samples"))
        load_slots(module, server.slots)
        encoder, cosine = module.online.encoder, self._config.metric == "cosine"
        if CENTROIDS not in server.slots:
            return Clusterer(nn.Sequential(encoder, UnitLength()) if cosine else encoder)
        head: nn.Module = Centroids(in_metric(module.centroids, self._config.metric))
        return Clusterer(encoder, nn.Sequential(UnitLength(), head) if cosine else head)

    def _specs(self) -> dict[str, TensorSpec]:
        """Return the specs of up to k centroids, which have unit length for "cosine"."""
        shape = (range(self._clusters + 1), self._config.projection)
        spec = TensorSpec(shape=shape, dtype=torch.float32)
        if self._config.metric == "cosine":
            spec = replace(spec, lowest=-UNIT_LENGTH, highest=UNIT_LENGTH)
        return {CENTROIDS: spec}

    def _module(self, stage: Stage) -> ClusterSiamese:
        return ClusterSiamese(self._config, self._task, stage, self._pairs)

    def _mine(self, client: Client, module: ClusterSiamese) -> Outcome:
        """Return the client's own k centroids, in the latent space of its own network (line 11).

        Those that stand for fewer samples than the task's k-anonymity are not sent.
        """
        latent = in_metric(client.embed(module.online.encoder), self._config.metric)
        seed, restarts = derive_seed(client.seed, "kmeans"), self._config.restarts
        found = kmeans(latent, self._clusters, seed=seed, restarts=restarts)
        return sent_centroids(latent, found, self._task)


def _of_stage(kept: Tensors, stage: Stage) -> dict[str, Tensor]:
    """Return Adam's state if it is from this stage, since each stage starts with none."""
    prefix = f"{stage}/"
    return {key.removeprefix(prefix): v for key, v in kept.items() if key.startswith(prefix)}


class CCFC(_MinesCentroids):
    """Cluster-contrastive federated clustering: networks averaged, centroids clustered again."""

    class Config(SiameseConfig):
        """CCFC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        pairs: Pairs = "exclude_self"
        """`exclude_self`: eq. (1); `all`: a sample is also compared with itself, as in the authors'
        code."""
        warmup_rounds: NonNegativeInt = 0
        """Rounds of SCFC before those of CCFC; 100 in the authors' code, 0 in the paper."""
        rounds: PositiveInt = 30
        """Rounds of CCFC."""

    def __init__(self, config: "CCFC.Config", task: Task) -> None:
        if config.initial == "independent" and not config.warmup_rounds:
            raise ConfigError(
                "method.initial=independent: networks with separate initial weights share no "
                "clusters, and with method.warmup_rounds=0 the first round compares clusters; add "
                "a warm-up or take method.initial=common."
            )
        stages: tuple[tuple[Stage, int], ...] = (
            ("samples", config.warmup_rounds),
            ("clusters", config.rounds),
        )
        super().__init__(config, task, Schedule(stages), config.pairs)


class SCFC(_MinesCentroids):
    """Sample-contrastive federated clustering: CCFC with SimSiam's loss (section 4.3)."""

    class Config(SiameseConfig):
        """SCFC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 100
        """Rounds."""

    def __init__(self, config: "SCFC.Config", task: Task) -> None:
        super().__init__(config, task, Schedule((("samples", config.rounds),)))
