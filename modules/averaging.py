"""Federated averaging in one stage: the base of CC, FedAvg and the pretrainers.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
(arXiv:1602.05629), Algorithm 1, for any LightningModule: in each round the clients train the global
model on their own data, and the server averages, weighted by their numbers of samples.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Generic, TypeVar

import torch
from lightning import LightningModule
from pydantic import Field, PositiveInt

from coterie.config.method import MethodConfig
from coterie.contract import (
    Client,
    Method,
    Outcome,
    Phase,
    Plan,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    blank,
    load_slots,
    seeded,
)
from coterie.errors import ContractError


class AveragingConfig(MethodConfig):
    """Participation, rounds, local epochs and batch size."""

    extensible: ClassVar[frozenset[str]] = frozenset({"rounds"})

    participation: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the clients in each round."""
    rounds: PositiveInt
    """Rounds; the optimiser starts afresh in each."""
    epochs: PositiveInt
    """Local epochs per round."""
    batch_size: Annotated[int, Field(ge=2)]
    """Samples per batch, n."""


ConfigT = TypeVar("ConfigT", bound=AveragingConfig)
ModuleT = TypeVar("ModuleT", bound=LightningModule)


class Averaging(Method, Generic[ConfigT, ModuleT]):
    """A method of one stage, whose subclass defines the module, its roles and the evaluated model.

    Attributes:
        network: The LightningModule's class, which takes the config and the task.
        metrics: The scalars of `training_step` to report.
    """

    stage: ClassVar[str]
    network: type[ModuleT]
    metrics: ClassVar[frozenset[str]] = frozenset({"loss"})

    def __init__(self, config: ConfigT, task: Task) -> None:
        self._config, self._task = config, task
        self.rounds = config.rounds

    def build(self) -> ModuleT:
        """Build the LightningModule, initialised from the global generator.

        Raises:
            ContractError: If the class has no `network`, and does not override this either.
        """
        if not hasattr(self, "network"):
            raise ContractError(
                f"{type(self).__name__} has neither `network` nor `build`; set `network` to the "
                "class of its LightningModule, or define `build`, which returns one."
            )
        return self.network(self._config, self._task)

    @property
    @abstractmethod
    def roles(self) -> StateRoles:
        """The role of every entry of the module's state; averaged ones are sent in each round."""

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a freshly initialised global model.

        Slots without parameters are never sent back.
        """
        with seeded(seed):
            module = self.build()
        self.roles.check(module)
        slots = self.roles.slots(module, self.roles.averaged)
        learned = dict(module.named_parameters())
        fixed = [slot for slot in slots if not slots[slot].keys() & learned.keys()]
        return ServerState(slots=slots, metadata={"fixed": [*fixed]} if fixed else {})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next round."""
        if server.round >= self.rounds:
            return None
        return Phase(
            name=self.stage,
            stage=self.stage,
            round=server.round + 1,
            cohort=self._config.participation,
            down=self.roles.averaged,
            up=self.trained(server),
            metrics=self.metrics,
        )

    def trained(self, server: ServerState) -> frozenset[str]:
        """Return the slots that clients send back: those with parameters."""
        fixed = server.metadata.get("fixed")
        return self.roles.averaged - set(fixed if isinstance(fixed, list) else ())

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Train on the client's samples from the global model."""
        module = client.module(self.stage, self.build)
        load_slots(module, slots)
        self.restore(module, client.state or {})
        self.enter_round(module, phase.round)
        plan = Plan(batch_size=self._config.batch_size, epochs=self._config.epochs)
        fit = client.fit(module, plan)
        return Outcome(
            up=self.roles.contributions(module, phase.up, weight=len(client.data)),
            state=self.keep(module, slots),
            metrics=fit.metrics,
        )

    def restore(self, module: ModuleT, kept: Tensors) -> None:
        """Load what the client kept, empty in its first task, into the global model."""

    def enter_round(self, module: ModuleT, round_: int) -> None:
        """Prepare the module for this round, from 1; by default do nothing."""

    def keep(self, module: ModuleT, slots: Slots) -> Tensors | None:
        """Return what the client keeps after training; by default nothing."""
        return None

    def global_module(self, server: ServerState) -> ModuleT:
        """Return the module with the server's values."""
        module = blank(self.build)
        load_slots(module, {slot: server.slots[slot] for slot in self.roles.averaged})
        return module


def scaled_rate(rate: float, participation: float, base: float | None) -> float:
    """Return the learning rate η √(ρ_new / ρ) for a participation that it was not tuned for.

    Orchestra (Lubana et al., 2022), appendix C.4, after Charles et al. (2021).
    """
    return rate if base is None else rate * (participation / base) ** 0.5


def sgd_or_adam(module: LightningModule, rate: float, momentum: float) -> torch.optim.Optimizer:
    """Return the optimiser that the module's config names, of the parameters with a gradient.

    It is SGD with momentum, or Adam or AdamW, which ignore `momentum`.
    """
    config: Any = module.config
    learned = [p for p in module.parameters() if p.requires_grad]
    if config.optimizer != "sgd":
        adam = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return adam(learned, lr=rate, weight_decay=config.weight_decay)
    return torch.optim.SGD(learned, lr=rate, momentum=momentum, weight_decay=config.weight_decay)
