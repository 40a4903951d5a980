"""The base of DCCO and FedSC, where clients share statistics of projections before training.

A round has two phases: clients send the means of some statistics over their samples, then they
train with the mean over all clients.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor, nn

from coterie.contract import (
    Client,
    Entry,
    Outcome,
    Phase,
    Plan,
    Role,
    ServerState,
    Slots,
    StateRoles,
    Task,
    Tensors,
    WeightedUpdate,
    derive_seed,
    load_slots,
)
from coterie.gradcache import Terms, Views, gradient_cached, through
from coterie.modules.pretraining import ONLINE, Pretraining, PretrainingConfig, TwoViews

STATISTICS, DRAW, SEED = "statistics", "draw", "seed"
"""Slot of the clients' statistics; slot of a round's seed; seed of batches and views."""
MEASURED, SAMPLES = "measured", "samples"
"""Metadata: the round of the statistics, and the samples that they stand for."""


class RunningMean(nn.Module):
    """A mean over samples, which the server averages over clients without its optimiser."""

    running_mean: Tensor

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(shape))


class SharedViews(TwoViews):
    """An online network that measures statistics of its projections, or is trained on them.

    Args:
        shapes: The shape of each statistic by name.
    """

    def __init__(
        self, config: PretrainingConfig, task: Task, shapes: Mapping[str, tuple[int, ...]]
    ) -> None:
        super().__init__(config, task)
        self.statistics = nn.ModuleDict({name: RunningMean(of) for name, of in shapes.items()})
        self.measures = False
        self.measured = 0
        self.to(task.dtype)

    @abstractmethod
    def measure(self, u: Tensor, v: Tensor) -> Tensors:
        """Return the statistics of a batch's projections of both views, both (n, projection)."""

    @abstractmethod
    def loss(self, u: Tensor, v: Tensor) -> Tensor:
        """Return the loss of a batch's projections of both views."""

    def begin(self, *, measures: bool) -> None:
        """Begin a task: reset the statistics to measure them, or train with the loaded ones."""
        self.measures, self.measured = measures, 0
        if measures:
            for value in self.shared().values():
                value.zero_()

    def shared(self) -> dict[str, Tensor]:
        """Return the statistics by name, as loaded or measured so far."""
        return {name: mean.running_mean for name, mean in self.statistics.items()}  # type: ignore[misc]

    @gradient_cached
    def training_step(self, views: Views, batch_idx: int) -> Terms:
        """Return the loss of one batch; a task that measures has no loss and no gradient."""
        with torch.set_grad_enabled(not self.measures):
            u, v = (through(self.online, view) for view in views)
        if not self.measures:
            return self.logged({"loss": self.loss(u, v)})
        self._add(u, v)
        return {"loss": torch.zeros((), device=self.device, requires_grad=True)}

    def _add(self, u: Tensor, v: Tensor) -> None:
        self.measured += len(u)
        share, means = len(u) / self.measured, self.shared()
        for name, value in self.measure(u, v).items():
            means[name].lerp_(value.to(means[name]), share)


SharedConfigT = TypeVar("SharedConfigT", bound=PretrainingConfig)
SharedT = TypeVar("SharedT", bound=SharedViews)


class SharedStatistics(Pretraining[SharedConfigT, SharedT]):
    """A method with rounds of two phases, whose batches and views are the same."""

    scalable = False  # a task that measures has no gradient
    roles = StateRoles(*ONLINE, Entry(pattern="statistics.*", role=Role.AVERAGE, slot=STATISTICS))

    def init(self, sizes: Mapping[int, int], seed: int) -> ServerState:
        """Return a fresh model, no statistics, and the seed of all batches."""
        start = super().init(sizes, seed)
        metadata = {SEED: derive_seed(seed, "batches"), MEASURED: 0, SAMPLES: 0}
        return replace(start, metadata={**start.metadata, **metadata})

    def next(self, server: ServerState) -> Phase | None:
        """Return the next phase; the first of a round's two sends statistics."""
        training = super().next(server)
        if training is None or server.step:
            return training and replace(training, step=1, down=training.down | {DRAW})
        return replace(
            training,
            name=STATISTICS,
            down=training.down - {STATISTICS} | {DRAW},
            up=frozenset({STATISTICS}),
            metrics=frozenset(),
            ends_round=False,
        )

    def offer(self, server: ServerState, phase: Phase) -> Slots:
        """Return the networks, the statistics, and the seed of this round."""
        seed = torch.tensor([derive_seed(server.whole(SEED), phase.round)])
        slots = {DRAW: {SEED: seed}} | {s: server.slots[s] for s in phase.down - {DRAW}}
        if STATISTICS in slots and not self.is_fresh(server, phase):
            slots[STATISTICS] = {n: torch.zeros_like(t) for n, t in slots[STATISTICS].items()}
        return slots

    def is_fresh(self, server: ServerState, phase: Phase) -> bool:
        """Return whether a client has sent statistics in this round, with the current weights."""
        return server.metadata.get(MEASURED) == phase.round

    def server(
        self,
        server: ServerState,
        phase: Phase,
        means: Mapping[str, WeightedUpdate],
        gathered: Mapping[int, Tensors],
    ) -> ServerState:
        """Average the slots, and remember the statistics' round and number of samples."""
        after = super().server(server, phase, means, gathered)
        if STATISTICS not in means:
            return after
        metadata = {MEASURED: phase.round, SAMPLES: means[STATISTICS].weight}
        return replace(after, metadata={**after.metadata, **metadata})

    def client(self, client: Client, phase: Phase, slots: Slots) -> Outcome:
        """Measure the statistics, or train."""
        module = client.module(self.stage, self.build)
        load_slots(module, {slot: slots[slot] for slot in slots if slot != DRAW})
        measures = STATISTICS in phase.up
        module.begin(measures=measures)
        self.receive(module, phase, client.state or {}, slots)
        seed = derive_seed(int(slots[DRAW][SEED]), client.id)
        fit = client.fit(module, self.plan(phase, seed))
        if measures:
            self.finish(module, client)
        weight = module.measured if measures else self.weight(client)
        return Outcome(
            up=self.roles.contributions(module, phase.up, weight=weight),
            state=self.keep(module, slots),
            metrics={} if measures else fit.metrics,
        )

    def plan(self, phase: Phase, seed: int) -> Plan:
        """Return the batches of a task: one pass to measure, all epochs to train."""
        epochs = 1 if STATISTICS in phase.up else self._config.epochs
        return Plan(batch_size=self._config.batch_size, epochs=epochs, seed=seed)

    def weight(self, client: Client) -> int:
        """Return the number of samples that a client has trained on."""
        return len(client.data)

    def receive(self, module: SharedT, phase: Phase, kept: Tensors, slots: Slots) -> None:
        """Load what the client kept in its last task; by default nothing."""

    def finish(self, module: SharedT, client: Client) -> None:
        """Change the measured statistics before they are sent; by default do nothing."""
