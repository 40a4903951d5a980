"""Federated averaging of one stage: what CC, FedAvg and the pretrainers share as methods.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629), Algorithm 1, for any LightningModule: each round the clients train the global
model on their own data, and the server takes the mean, weighted by their numbers of samples.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, ClassVar, Generic, TypeVar

from lightning import LightningModule
from pydantic import Field, PositiveInt

from coterie.config.component import Component
from coterie.contract import (
    Client,
    Mean,
    Outcome,
    Phase,
    Plan,
    ServerState,
    Slots,
    StateRules,
    Task,
    Tensors,
    load_slots,
    seeded,
)
from coterie.contract.clusterer import Clusterer


class AveragingConfig(Component):
    """How long and on how much a client trains."""

    extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients in each round."""
    rounds: PositiveInt
    """Rounds; the optimiser starts afresh in each."""
    epochs: PositiveInt
    """Local epochs a round."""
    batch_size: Annotated[int, Field(ge=2)]
    """Samples a batch, n."""


ConfigT = TypeVar("ConfigT", bound=AveragingConfig)
ModuleT = TypeVar("ModuleT", bound=LightningModule)


class Averaging(ABC, Generic[ConfigT, ModuleT]):
    """A method of one stage. A subclass says what is trained, and by which rules.

    Attributes:
        stage: The stage's name.
        metrics: The scalars of `training_step` that people watch.
    """

    needs_labels: ClassVar[bool] = False
    stage: ClassVar[str]
    metrics: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __init__(self, config: ConfigT, task: Task) -> None:
        self._config, self._task = config, task
        self.rounds = config.rounds

    @abstractmethod
    def build(self) -> ModuleT:
        """The LightningModule, freshly initialised from the global generator."""

    @property
    @abstractmethod
    def rules(self) -> StateRules:
        """The rule of every entry of its state; whatever is averaged crosses in each round."""

    @abstractmethod
    def model_for(self, server: ServerState, client: int | None) -> Clusterer:
        """The model to evaluate and take away."""

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """A freshly initialised global model; its parts without parameters are not sent back."""
        with seeded(seed):
            module = self.build()
        self.rules.check(module)
        slots, learned = (
            self.rules.slots(module, self.rules.averaged),
            dict(module.named_parameters()),
        )
        fixed = [slot for slot in slots if not slots[slot].keys() & learned.keys()]
        return ServerState(slots=slots, facts={"fixed": [*fixed]} if fixed else {})

    def next(self, server: ServerState) -> Phase | None:
        """The next round."""
        if server.round >= self.rounds:
            return None
        down, fixed = self.rules.averaged, server.facts.get("fixed")
        up = down - set(fixed) if isinstance(fixed, list) else down
        return Phase(
            name=self.stage, stage=self.stage, round=server.round + 1, down=down, up=up,
            metrics=self.metrics, cohort=self._config.participation,
        )  # fmt: skip

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """The global model."""
        return {slot: server.slots[slot] for slot in phase.down}

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Local training from the global model."""
        module = client.module(self.stage, self.build)
        load_slots(module, slots)
        self.restore(module, client.state or {})
        plan = Plan(batch_size=self._config.batch_size, epochs=self._config.epochs)
        fit = client.fit(module, plan)
        size = len(client.data)
        up = {slot: Mean(weight=size, tensors=self.rules.slot(module, slot)) for slot in phase.up}
        return Outcome(up=up, state=self.keep(module, slots), metrics=fit.metrics)

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, Mean],
        records: Mapping[int, Tensors],
    ) -> ServerState:
        """Federated averaging, weighted by the clients' numbers of samples."""
        return server.advance(phase, {slot: mean.tensors for slot, mean in means.items()})

    def restore(self, module: ModuleT, kept: Tensors) -> None:
        """Before training: put what the client kept, empty at first, into the global model."""

    def keep(self, module: ModuleT, slots: Slots) -> Tensors | None:
        """After training from these slots: what the client keeps; by default nothing."""
        return None

    def global_module(self, server: ServerState) -> ModuleT:
        """The module with the server's values."""
        with seeded(0):  # every drawn value is replaced; the global generator stays as it was
            module = self.build()
        load_slots(module, server.slots)
        return module
