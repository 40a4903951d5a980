"""CCFC and SCFC: cluster-contrastive and sample-contrastive federated clustering.

Yan et al., "CCFC: Bridging Federated Clustering and Contrastive Learning", Algorithm 1. Clients
label their samples by the nearest global centroid, draw each cluster together, and send their
network and k centroids of their own; the server averages the former and clusters the latter. SCFC
has SimSiam's loss in place of the clusters'; as in the authors' code it can warm CCFC up.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from coterie.clustering.kmeans import kmeans
from coterie.contract import (
    Client,
    Entry,
    Mean,
    Outcome,
    Phase,
    Plan,
    Rule,
    ServerState,
    Slots,
    StateRules,
    Task,
    Tensors,
    derive_seed,
    load_slots,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.errors import ConfigError
from coterie.losses.cosine import Pairs
from coterie.networks.branch import cluster_count
from coterie.networks.heads import Centroids, UnitLength
from modules.cluster_siamese import (
    METRICS,
    ClusterSiamese,
    SiameseConfig,
    Stage,
    in_metric,
)

NETWORKS = frozenset({"encoder", "predictor"})
CENTROIDS = "centroids"
RULES = StateRules(
    *(Entry(pattern=f"online.{part}.*", rule=Rule.AVERAGE, slot=part) for part in NETWORKS),
    Entry(pattern="world.*", rule=Rule.RESET),
    Entry(pattern=CENTROIDS, rule=Rule.RESET),
    Entry(pattern="augment.*", rule=Rule.RESET),
)
"""The local network is averaged; the global one and the centroids are the server's each turn."""


class _Siamese:
    """What CCFC and SCFC share: stages one after the other, the last of which mines centroids."""

    needs_labels = False

    def __init__(
        self,
        config: SiameseConfig,
        task: Task,
        schedule: Sequence[tuple[Stage, int]],
        pairs: Pairs = "exclude_self",
    ) -> None:
        self._config, self._task, self._schedule, self._pairs = config, task, schedule, pairs
        self._clusters = cluster_count(config.clusters, task)
        self.rounds = sum(rounds for _, rounds in schedule)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """A freshly initialised global network.

        Raises:
            ConfigError: If a client has fewer samples than clusters, or `alone` names none.
        """
        client, fewest = min(sizes.items(), key=lambda item: item[1])
        if fewest < self._clusters:
            raise ConfigError(
                f"method.clusters={self._clusters}: client {client} has {fewest} samples, and each "
                "client mines as many centroids; lower it or choose fewer clients."
            )
        if self._config.alone is not None and self._config.alone not in sizes:
            raise ConfigError(
                f"method.alone={self._config.alone}: there are {len(sizes)} clients; choose 0 to "
                f"{len(sizes) - 1}."
            )
        with seeded(seed):
            module = self._module("samples")
        RULES.check(module)
        return ServerState(slots=RULES.slots(module, NETWORKS), facts={"seed": seed})

    def next(self, server: ServerState) -> Phase | None:
        """The next round of the stage under way; the clusters' begins with a phase that finds them.

        Should nobody take part in that phase, it is tried once more, and then the round is over.
        """
        number, stage = server.round + 1, self._stage(server.round + 1)
        if stage is None:
            return None
        alone = self._config.alone
        cohort = self._config.participation if alone is None else (alone,)
        mined = frozenset({CENTROIDS}) if stage == self._schedule[-1][0] else frozenset()
        if stage == "clusters" and CENTROIDS not in server.slots:
            return Phase(
                name="centroids", stage=stage, round=number, step=server.step, cohort=cohort,
                down=frozenset({"encoder"}), records=mined, ends_round=server.step > 0,
            )  # fmt: skip
        return Phase(
            name=stage, stage=stage, round=number, step=server.step, cohort=cohort,
            down=NETWORKS | mined if stage == "clusters" else NETWORKS,
            up=NETWORKS, records=mined, metrics=METRICS,
        )  # fmt: skip

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The global network, and in the clusters' stage the global centroids."""
        return {slot: server.slots[slot] for slot in phase.down}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Lines 5 to 14 of Algorithm 1; of a phase that only finds centroids, line 11."""
        stage: Stage = "clusters" if phase.stage == "clusters" else "samples"
        module = client.module(stage, lambda: self._module(stage))
        load_slots(module, slots)
        if not phase.up:
            return Outcome(records=self._mine(client, module), state=client.state)
        module.start(_of_stage(client.state or {}, stage))
        if self._config.initial == "independent" and (phase.round, stage) == (1, "samples"):
            with seeded(client.seed):
                module.online.load_state_dict(self._module(stage).online.state_dict())
        plan = Plan(batch_size=self._config.batch_size, epochs=self._config.epochs)
        fit = client.fit(module, plan)
        size = len(client.data)
        adam = module.remember() if self._config.keep_optimizer else {}
        return Outcome(
            up={slot: Mean(weight=size, tensors=RULES.slot(module, slot)) for slot in phase.up},
            records=self._mine(client, module) if phase.records else {},
            state={f"{stage}/{name}": value for name, value in adam.items()} or None,
            metrics=fit.metrics,
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Federated averaging by numbers of samples, eq. (8), and k-means over all centroids."""
        slots: dict[str, Tensors] = {slot: mean.tensors for slot, mean in means.items()}
        if phase.records:
            mined = torch.cat([record[CENTROIDS] for record in records.values()])
            seed = server.facts["seed"]
            assert isinstance(seed, int)
            draw = derive_seed(seed, "kmeans", phase.round, phase.step)
            slots[CENTROIDS] = {CENTROIDS: self._kmeans(mined, draw)}
        return server.advance(phase, slots)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The global encoder, with the global centroids once there are some.

        By cosine its representations have unit length before, when others look for clusters.
        """
        with seeded(0):  # every drawn value is replaced; the global generator stays as it was
            module = self._module("samples")
        load_slots(module, server.slots)
        encoder, cosine = module.online.encoder, self._config.metric == "cosine"
        if CENTROIDS not in server.slots:
            return Clusterer(nn.Sequential(encoder, UnitLength()) if cosine else encoder)
        head: nn.Module = Centroids(in_metric(module.centroids, self._config.metric))
        return Clusterer(encoder, nn.Sequential(UnitLength(), head) if cosine else head)

    def _module(self, stage: Stage) -> ClusterSiamese:
        return ClusterSiamese(self._config, self._task, stage, self._pairs)

    def _stage(self, number: int) -> Stage | None:
        for stage, rounds in self._schedule:
            if number <= rounds:
                return stage
            number -= rounds
        return None

    def _mine(self, client: Client, module: ClusterSiamese) -> dict[str, Tensor]:
        """The client's own k centroids, of its samples in its network's latent space (line 11)."""
        latent = in_metric(client.embed(module.online.encoder), self._config.metric)
        return {CENTROIDS: self._kmeans(latent, derive_seed(client.seed, "kmeans"))}

    def _kmeans(self, points: Tensor, seed: int) -> Tensor:
        found = kmeans(points, self._clusters, seed=seed, restarts=self._config.restarts)
        return found.centroids


def _of_stage(kept: Tensors, stage: Stage) -> dict[str, Tensor]:
    """What Adam remembers of this stage: it starts afresh in each."""
    prefix = f"{stage}/"
    return {key.removeprefix(prefix): v for key, v in kept.items() if key.startswith(prefix)}


class CCFC(_Siamese):
    """Cluster-contrastive federated clustering."""

    class Config(SiameseConfig):
        """CCFC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        pairs: Pairs = "exclude_self"
        """`exclude_self`: eq. (1); `all`: a sample is also compared with itself, as in the authors'
        code."""
        warmup_rounds: NonNegativeInt = 0
        """Rounds of SCFC before; 100 in the authors' code. The paper has none."""
        rounds: PositiveInt = 30
        """Rounds of CCFC."""

    def __init__(self, config: "CCFC.Config", task: Task) -> None:
        if config.initial == "independent" and not config.warmup_rounds:
            raise ConfigError(
                "method.initial=independent: networks of their own share no clusters, and with "
                "method.warmup_rounds=0 the first round compares clusters; add a warm-up or take "
                "method.initial=common."
            )
        schedule: tuple[tuple[Stage, int], ...] = (("samples", config.warmup_rounds),)
        schedule += (("clusters", config.rounds),)
        super().__init__(config, task, schedule, config.pairs)


class SCFC(_Siamese):
    """Sample-contrastive federated clustering: SimSiam in place of the clusters (section 4.3)."""

    class Config(SiameseConfig):
        """SCFC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 100
        """Rounds."""

    def __init__(self, config: "SCFC.Config", task: Task) -> None:
        super().__init__(config, task, (("samples", config.rounds),))
