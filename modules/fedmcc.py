"""FedMCC and MCC: momentum contrastive clustering, federated in two stages and centralised.

Miao and Koyuncu, "Federated Momentum Contrastive Clustering". FedMCC first learns a representation
with the instance-level terms of the loss (Algorithm 1, eq. (8)) and averages the online encoder and
instance projector. Then it freezes the global encoder and trains a cluster projector with the
cluster-level terms (Algorithm 2, eq. (9)). Target networks are EMAs of the online ones and never
leave their client. MCC optimises both levels at once (eq. (6)), usually on one client with all
data.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.config.component import NestedComponent
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
    load_slots,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import Json
from coterie.errors import ConfigError
from coterie.modules.mcc import HEAD_LOSS, METRICS, PARTS, MomentumConfig, MomentumContrast, Stage


class Training(NamedTuple):
    """How a stage trains: its name, the local epochs per round, its config and its task."""

    stage: Stage
    epochs: int
    config: MomentumConfig
    task: Task


class _Momentum(Method):
    """The federated part of MCC and FedMCC: stages one after the other."""

    def __init__(self, config: MomentumConfig, task: Task, schedule: Schedule[Training]) -> None:
        if config.aggregate_target and config.restart_target:
            raise ConfigError(
                "method.aggregate_target=true, method.restart_target=true: a target network is "
                "averaged or starts afresh; set one of them."
            )
        self._config, self._task, self._schedule = config, task, schedule
        self.rounds = schedule.rounds

    def roles(self, stage: Stage) -> StateRoles:
        """Return the role of every state entry in a stage."""
        entries = [Entry(pattern="augment.*", role=Role.RESET)]
        for part in PARTS["joint"]:
            trained = part in PARTS[stage]
            offered = trained or (stage == "clustering" and part == "encoder")
            entries.append(_entry(f"online.{part}.*", part if offered else ""))
            if trained and self._config.keeps_target:
                entries.append(Entry(pattern=f"target.{part}.*", role=Role.KEEP))
            else:
                sent = trained and self._config.aggregate_target
                entries.append(_entry(f"target.{part}.*", f"target_{part}" if sent else ""))
        return StateRoles(*entries)

    def build(self) -> MomentumContrast:
        """Return the networks and the loss of the first stage."""
        first = self._schedule.at(1)
        assert first is not None  # there is a round
        return MomentumContrast(first.config, first.task, first.stage)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a freshly initialised global model; the targets are equal to it."""
        with seeded(seed):
            module = MomentumContrast(self._config, self._task, "joint")
        roles = self.roles("joint")
        roles.check(module)
        return ServerState(slots=roles.slots(module, self._trained("joint")))

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round of the current stage.

        The clustering stage also offers the encoder.
        """
        training = self._schedule.at(server.round + 1)
        if training is None:
            return None
        stage, up = training.stage, self._trained(training.stage)
        return Phase(
            name=stage,
            stage=stage,
            round=server.round + 1,
            cohort=self._config.participation,
            down=up | {"encoder"} if stage == "clustering" else up,
            up=up,
            gathered=self._gathered(stage),
            metrics=METRICS,
            specs={
                "head_losses": TensorSpec(shape=(self._config.cluster_heads,), dtype=torch.float64)
            },
        )

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Run ClientLocalTraining of Algorithms 1 and 2."""
        trainings = (training for training, _ in self._schedule.stages)
        stage, epochs, config, task = next(t for t in trainings if t.stage == phase.stage)
        roles = self.roles(stage)
        module = client.module(stage, lambda: MomentumContrast(config, task, stage))
        load_slots(module, slots)
        if not config.aggregate_target:
            module.start_target(roles.keep_only(client.state or {}))
        fit = client.fit(module, Plan(batch_size=config.batch_size, epochs=epochs))
        return Outcome(
            up=roles.contributions(module, phase.up, weight=len(client.data)),
            gathered={"head_losses": head_losses(fit.metrics)} if phase.gathered else {},
            smallest=dict.fromkeys(phase.gathered, len(client.data)),
            state=roles.kept(module) or None,
            metrics={name: fit.metrics[name] for name in METRICS},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Average the networks, and choose among several cluster projectors."""
        if not phase.gathered:
            return super().server(server, phase, means, gathered)
        losses = torch.stack([tensors["head_losses"] for tensors in gathered.values()]).mean(dim=0)
        before = server.metadata.get("head_losses")
        if isinstance(before, list):  # a running mean, because rounds are noisy
            losses = 0.7 * losses.new_tensor(before) + 0.3 * losses
        metadata: dict[str, Json] = {"head_losses": losses.tolist(), "head": int(losses.argmin())}
        return server.advance(phase, averaged(means), metadata)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """Return the global encoder, and the cluster projector once a stage has trained it."""
        module = blank(lambda: MomentumContrast(self._config, self._task, "joint"))
        load_slots(module, {part: server.slots[part] for part in PARTS["joint"]})
        latest = self._schedule.at(max(1, server.round))
        if latest is not None and latest.stage == "representation":
            return Clusterer(module.online.encoder)
        chosen = f"cluster.heads.{server.metadata.get('head', 0)}"
        name = "cluster" if self._config.cluster_heads == 1 else chosen
        return Clusterer(module.online.encoder, module.online.get_submodule(name))

    def _gathered(self, stage: Stage) -> frozenset[str]:
        several = stage != "representation" and self._config.cluster_heads > 1
        return frozenset({"head_losses"}) if several else frozenset()

    def _trained(self, stage: Stage) -> frozenset[str]:
        parts = PARTS[stage]
        targets = [f"target_{part}" for part in parts] if self._config.aggregate_target else []
        return frozenset([*parts, *targets])


class FedMCC(_Momentum):
    """Federated momentum contrastive clustering, in two stages.

    They are Algorithm 1 and Algorithm 2.
    """

    vmappable = True

    class Config(MomentumConfig):
        """FedMCC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"clustering_rounds"})
        ema: ClassVar[frozenset[str]] = frozenset({"momentum", "clustering_momentum"})

        representation_rounds: NonNegativeInt = 100
        """Rounds R of stage 1; 0 clusters the given encoder as it is, such as a pretrained one."""
        clustering_rounds: NonNegativeInt = 10
        """Rounds of stage 2; 0 learns a representation only."""
        representation_epochs: PositiveInt = 5
        """Local epochs E of stage 1."""
        clustering_epochs: PositiveInt = 5
        """Local epochs E of stage 2."""
        clustering_learning_rate: PositiveFloat | None = None
        """Adam's learning rate in stage 2; by default stage 1's."""
        clustering_momentum: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
        """EMA of the target cluster projector in stage 2; by default stage 1's."""
        clustering_augmentation: NestedComponent = None
        """Views in stage 2, `{target: …}`; by default stage 1's."""

    def __init__(self, config: Config, task: Task) -> None:
        if not config.representation_rounds + config.clustering_rounds:
            raise ConfigError(
                "method.representation_rounds=0: with method.clustering_rounds=0 nothing is "
                "trained; raise one of the two."
            )
        own = {
            "learning_rate": config.clustering_learning_rate,
            "momentum": config.clustering_momentum,
        }
        second = config.model_copy(update={k: v for k, v in own.items() if v is not None})
        views = config.clustering_augmentation or task.augmentation
        if views is not task.augmentation:  # refused now, not after stage 1
            try:
                views.build(task.shape)  # type: ignore[union-attr]
            except ConfigError as error:
                raise ConfigError(f"method.clustering_augmentation: {error}") from error
        viewed = replace(task, augmentation=views)  # type: ignore[arg-type]
        first = Training("representation", config.representation_epochs, config, task)
        then = Training("clustering", config.clustering_epochs, second, viewed)
        stages = (first, config.representation_rounds), (then, config.clustering_rounds)
        super().__init__(config, task, Schedule(stages))


class MCC(_Momentum):
    """Momentum contrastive clustering, centralised. Both levels are trained at once, eq. (6)."""

    vmappable = True

    class Config(MomentumConfig):
        """MCC's configuration; 50 rounds of 10 epochs are the 500 epochs of fig. 5."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 50
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 10
        """Epochs per round."""

    def __init__(self, config: Config, task: Task) -> None:
        training = Training("joint", config.epochs, config, task)
        super().__init__(config, task, Schedule(((training, config.rounds),)))


def head_losses(metrics: Mapping[str, float]) -> Tensor:
    """Return the losses of the single cluster projectors, float64 (heads,), in order."""
    own = {k.removeprefix(HEAD_LOSS): v for k, v in metrics.items() if k.startswith(HEAD_LOSS)}
    return torch.tensor([own[key] for key in sorted(own, key=int)], dtype=torch.float64)


def _entry(pattern: str, slot: str) -> Entry:
    role = Role.AVERAGE if slot else Role.RESET
    return Entry(pattern=pattern, role=role, slot=slot)
