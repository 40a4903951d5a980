"""FedMCC and MCC: momentum contrastive clustering, federated in two stages and centralised.

Miao and Koyuncu, "Federated Momentum Contrastive Clustering". FedMCC first learns a representation
with the instance-level terms of the loss (Algorithm 1, eq. (8)), averaging the online encoder and
instance projector; then, on the frozen global encoder, a cluster projector with the cluster-level
terms (Algorithm 2, eq. (9)). Target networks follow the online ones by EMA and never leave their
client. MCC optimises both levels at once (eq. (6)), as a rule on one client that has all data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, NamedTuple

import torch
from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor

from coterie.config.component import NestedComponent
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
    load_slots,
    seeded,
)
from coterie.contract.clusterer import Clusterer
from coterie.contract.phase import Fact
from coterie.errors import ConfigError
from modules.mcc import HEAD_LOSS, METRICS, PARTS, MomentumConfig, MomentumContrast, Stage


class Step(NamedTuple):
    """A stage, its rounds, the local epochs of each, its config and its task."""

    stage: Stage
    rounds: int
    epochs: int
    config: MomentumConfig
    task: Task


class _Momentum:
    """What MCC and FedMCC share as federated methods: a schedule of stages, one after the other."""

    needs_labels = False

    def __init__(self, config: MomentumConfig, task: Task, schedule: Sequence[Step]) -> None:
        if config.aggregate_target and config.restart_target:
            raise ConfigError(
                "method.aggregate_target=true, method.restart_target=true: a target network is "
                "averaged or starts afresh; set one of them."
            )
        self._config, self._task, self._schedule = config, task, schedule
        self.rounds = sum(step.rounds for step in schedule)

    def rules(self, stage: Stage) -> StateRules:
        """The rule of every state entry in a stage."""
        entries = [Entry(pattern="augment.*", rule=Rule.RESET)]
        for part in PARTS["joint"]:
            trained = part in PARTS[stage]
            offered = trained or (stage == "clustering" and part == "encoder")
            entries.append(_entry(f"online.{part}.*", part if offered else ""))
            if trained and self._config.keeps_target:
                entries.append(Entry(pattern=f"target.{part}.*", rule=Rule.KEEP))
            else:
                averaged = trained and self._config.aggregate_target
                entries.append(_entry(f"target.{part}.*", f"target_{part}" if averaged else ""))
        return StateRules(*entries)

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """A freshly initialised global model; the targets are equal to it."""
        with seeded(seed):
            module = MomentumContrast(self._config, self._task, "joint")
        rules = self.rules("joint")
        rules.check(module)
        return ServerState(slots=rules.slots(module, self._trained("joint")))

    def next(self, server: ServerState) -> Phase | None:
        """The next round of the stage that is under way."""
        stage = self._stage(server.round + 1)
        if stage is None:
            return None
        up = self._trained(stage)
        down = up | {"encoder"} if stage == "clustering" else up
        return Phase(
            name=stage, stage=stage, round=server.round + 1, down=down, up=up, metrics=METRICS,
            cohort=self._config.participation, records=self._records(stage),
        )  # fmt: skip

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The global model's parts of this stage."""
        return {slot: server.slots[slot] for slot in phase.down}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """ClientLocalTraining of Algorithms 1 and 2."""
        step = next(step for step in self._schedule if step.stage == phase.stage)
        rules = self.rules(step.stage)
        module = client.module(
            step.stage, lambda: MomentumContrast(step.config, step.task, step.stage)
        )
        load_slots(module, slots)
        if not self._config.aggregate_target:
            module.start_target(rules.keep_only(client.state or {}))
        fit = client.fit(module, Plan(batch_size=self._config.batch_size, epochs=step.epochs))
        size = len(client.data)
        up = {slot: Mean(weight=size, tensors=rules.slot(module, slot)) for slot in phase.up}
        return Outcome(
            up=up,
            records={"head_losses": head_losses(fit.metrics)} if phase.records else {},
            state=rules.kept(module) or None,
            metrics={name: fit.metrics[name] for name in METRICS},
        )

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Federated averaging, weighted by the clients' numbers of samples."""
        slots = {slot: mean.tensors for slot, mean in means.items()}
        if not phase.records:
            return server.advance(phase, slots)
        losses = torch.stack([record["head_losses"] for record in records.values()]).mean(dim=0)
        before = server.facts.get("head_losses")
        if isinstance(before, list):  # rounds are noisy: a running mean over them
            losses = 0.7 * losses.new_tensor(before) + 0.3 * losses
        facts: dict[str, Fact] = {"head_losses": losses.tolist(), "head": int(losses.argmin())}
        return server.advance(phase, slots, facts)

    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The global encoder, with the cluster projector once that is being trained."""
        with seeded(0):  # every drawn value is replaced; the global generator stays as it was
            module = MomentumContrast(self._config, self._task, "joint")
        load_slots(module, {part: server.slots[part] for part in PARTS["joint"]})
        if self._stage(max(1, server.round)) == "representation":
            return Clusterer(module.online.encoder)
        chosen = f"cluster.heads.{server.facts.get('head', 0)}"
        name = "cluster" if self._config.cluster_heads == 1 else chosen
        return Clusterer(module.online.encoder, module.online.get_submodule(name))

    def _stage(self, number: int) -> Stage | None:
        for step in self._schedule:
            if number <= step.rounds:
                return step.stage
            number -= step.rounds
        return None

    def _records(self, stage: Stage) -> frozenset[str]:
        several = stage != "representation" and self._config.cluster_heads > 1
        return frozenset({"head_losses"}) if several else frozenset()

    def _trained(self, stage: Stage) -> frozenset[str]:
        parts = PARTS[stage]
        targets = [f"target_{part}" for part in parts] if self._config.aggregate_target else []
        return frozenset([*parts, *targets])


class FedMCC(_Momentum):
    """Federated momentum contrastive clustering: Algorithm 1, then Algorithm 2."""

    class Config(MomentumConfig):
        """FedMCC's configuration."""

        extensible: ClassVar[frozenset[str]] = frozenset({"clustering_rounds"})
        ema: ClassVar[frozenset[str]] = frozenset({"momentum", "clustering_momentum"})

        representation_rounds: PositiveInt = 100
        """Rounds R of stage 1."""
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
        own = {
            "learning_rate": config.clustering_learning_rate,
            "momentum": config.clustering_momentum,
        }
        second = config.model_copy(update={k: v for k, v in own.items() if v is not None})
        views = config.clustering_augmentation or task.augmentation
        if views is not task.augmentation:  # now, not after stage 1
            try:
                views.build(task.shape)  # type: ignore[union-attr]
            except ConfigError as error:
                raise ConfigError(f"method.clustering_augmentation: {error}") from error
        rounds, epochs = config.representation_rounds, config.representation_epochs
        clustering = Step(
            stage="clustering",
            rounds=config.clustering_rounds,
            epochs=config.clustering_epochs,
            config=second,
            task=replace(task, augmentation=views),  # type: ignore[arg-type]
        )
        super().__init__(
            config, task, (Step("representation", rounds, epochs, config, task), clustering)
        )


class MCC(_Momentum):
    """Momentum contrastive clustering, eq. (6): both levels at once, as a rule on one client."""

    class Config(MomentumConfig):
        """MCC's configuration; 50 rounds of 10 epochs are the 500 epochs of fig. 5."""

        extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

        rounds: PositiveInt = 50
        """Rounds; the optimiser starts afresh in each."""
        epochs: PositiveInt = 10
        """Epochs a round."""

    def __init__(self, config: Config, task: Task) -> None:
        super().__init__(config, task, (Step("joint", config.rounds, config.epochs, config, task),))


def head_losses(metrics: Mapping[str, float]) -> Tensor:
    """The cluster projectors' own losses, float64 (heads,), in their order."""
    own = {k.removeprefix(HEAD_LOSS): v for k, v in metrics.items() if k.startswith(HEAD_LOSS)}
    return torch.tensor([own[key] for key in sorted(own, key=int)], dtype=torch.float64)


def _entry(pattern: str, slot: str) -> Entry:
    rule = Rule.AVERAGE if slot else Rule.RESET
    return Entry(pattern=pattern, rule=rule, slot=slot)
