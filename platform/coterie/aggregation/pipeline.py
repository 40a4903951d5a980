"""The aggregation of a run: its stages in order, composed once from its config.

Each process composes the same stages. The hooks of `Stage` say what each does and when.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from lightning import LightningModule
from numpy.typing import NDArray

from coterie.aggregation.exact import ExactMeans, Layout, sum_limit
from coterie.aggregation.stage import (
    Contribution,
    Gathering,
    Kept,
    PhaseRun,
    Sent,
    Stage,
    StageTask,
    Start,
    Sums,
)
from coterie.contract.client import Plan
from coterie.contract.phase import Outcome, Phase, Slots, Tensors, WeightedUpdate
from coterie.errors import ContractError

_OWN = "aggregation/"
"""Prefix of the names of stages' tensors in a client's state, and of stages' slots."""


@dataclass(frozen=True)
class Pipeline:
    """A run's stages; see the hooks of `Stage`.

    Attributes:
        stages: The stages, in the order in which a contribution passes them.
        sums: Whether clients contribute sums over their samples.
    """

    stages: tuple[Stage, ...] = ()
    sums: bool = False

    def check(self, start: Start) -> None:
        """Refuse runs that a stage cannot handle."""
        for stage in self.stages:
            stage.check(start)

    def ends(self, phase: Phase, clients: Sequence[int]) -> str:
        """Say why the run ends before a phase; "" if it goes on."""
        return next(filter(None, (stage.ends(phase, clients) for stage in self.stages)), "")

    def prepare(
        self, phase: Phase, sizes: Mapping[int, int], offered: Slots, server: Slots, kept: Kept
    ) -> PhaseRun:
        """Ask each stage what the clients' processes need for a phase."""
        extra: dict[str, Tensors] = {}
        for stage in self.stages:
            found = stage.offers(phase, server, _kept_by(stage, kept))
            extra |= {f"{_OWN}{stage.name}/{slot}": tensors for slot, tensors in found.items()}
        most = sum_limit(len(sizes)) if self.sums else None
        slots = {**{name: server[name] for name in sorted(phase.up)}, **extra}
        run = PhaseRun(
            phase=phase,
            sizes=sizes,
            offered={**offered, **extra},
            server={**server, **extra},
            layouts={name: Layout.of(slot, most) for name, slot in slots.items()},
        )
        asked = {stage.name: stage.request(run) for stage in self.stages}
        return replace(run, data={name: data for name, data in asked.items() if data is not None})

    def tasks(self, run: PhaseRun) -> dict[int, dict[str, Any]]:
        """Return what each stage attaches to each client's task."""
        found: dict[int, dict[str, Any]] = {client: {} for client in run.sizes}
        for stage in self.stages:
            for client, data in stage.tasks(run).items():
                found[client][stage.name] = data
        return found

    def open(
        self, key: str, call: int, layouts: Mapping[str, Layout], data: Mapping[str, Any]
    ) -> Sums:
        """Return the accumulators of a call, to which a process adds contributions."""
        for stage in self.stages:
            sums = stage.sums(key, call, layouts, data.get(stage.name))
            if sums is not None:
                return sums
        return ExactMeans(dict(layouts))

    def answer(self, stage: str, call: int, question: str, message: Any) -> Any:
        """Answer a stage's question in the process of a call."""
        return self._named(stage).answer(call, question, message)

    def collect(self, run: PhaseRun, gathering: Gathering) -> None:
        """Complete the sums of a phase whose tasks are done."""
        for stage in self.stages:
            stage.collect(run, gathering)

    def total(self, run: PhaseRun, sums: ExactMeans) -> Mapping[str, WeightedUpdate]:
        """Return the slots' means."""
        for stage in self.stages:
            means = stage.total(run, sums)
            if means is not None:
                return means
        return sums.result()

    def join(
        self, run: PhaseRun, whole: Mapping[str, Callable[[], Sequence[Tensors]]]
    ) -> dict[str, WeightedUpdate]:
        """Return the results of slots that the server received as single contributions."""
        return {
            slot: mean for stage in self.stages for slot, mean in stage.join(run, whole).items()
        }

    def step(
        self, run: PhaseRun, means: Mapping[str, WeightedUpdate], kept: Kept
    ) -> tuple[dict[str, WeightedUpdate], dict[str, Tensors]]:
        """Return what the method's server half receives, and the stages' new server values."""
        after: dict[str, Tensors] = {}
        for stage in self.stages:
            means, now = stage.step(run, means, _kept_by(stage, kept))
            after |= {f"{stage.name}/{slot}": tensors for slot, tensors in now.items()}
        return {slot: mean for slot, mean in means.items() if not slot.startswith(_OWN)}, after

    def audit(
        self, rows: Sequence[Sent], run: PhaseRun, means: Mapping[str, WeightedUpdate]
    ) -> Sequence[Sent]:
        """Return what clients sent, as far as the server could read it."""
        for stage in self.stages:
            rows = stage.audit(rows, run, means)
        return rows

    def metrics(self, phase: Phase) -> dict[str, float]:
        """Return numbers about the run up to a phase."""
        return {name: value for s in self.stages for name, value in s.metrics(phase).items()}

    def summary(self) -> dict[str, float | str]:
        """Return numbers about the whole run."""
        return {name: value for s in self.stages for name, value in s.summary().items()}

    def counts(self) -> dict[str, int]:
        """Return each stage's `count`, which a checkpoint stores."""
        return {stage.name: count for stage in self.stages if (count := stage.count())}

    def for_client(
        self,
        task: StageTask,
        phase_data: Mapping[str, Any],
        data: Mapping[str, Any],
        state: Tensors | None,
    ) -> "ClientStages":
        """Return the stages for one client's task."""
        bound = tuple(
            (
                stage,
                replace(
                    task,
                    phase_data=phase_data.get(stage.name),
                    data=data.get(stage.name),
                    state=_inner(state or {}, f"{_OWN}{stage.name}/"),
                ),
            )
            for stage in self.stages
        )
        return ClientStages(bound, state)

    def _named(self, name: str) -> Stage:
        return next(stage for stage in self.stages if stage.name == name)


@dataclass(frozen=True)
class ClientStages:
    """The stages for one client's task, in its process."""

    bound: tuple[tuple[Stage, StageTask], ...] = ()
    kept: Tensors | None = None

    @property
    def state(self) -> Tensors | None:
        """The values that the method's client half has kept; None if there are none."""
        if self.kept is None:
            return None
        own = {name: value for name, value in self.kept.items() if not name.startswith(_OWN)}
        return own if own or not self.kept else None

    @property
    def hides(self) -> bool:
        """Whether a failure of the client must not show its values."""
        return any(stage.hides(task) for stage, task in self.bound)

    @contextmanager
    def training(self, module: LightningModule, plan: Plan) -> Iterator[None]:
        """Return the context in which the client trains."""
        with ExitStack() as stack:
            for stage, task in self.bound:
                stack.enter_context(stage.training(module, plan, task))
            yield

    def noisy(self, sums: NDArray[np.int64], sigma: int, purpose: str) -> NDArray[np.int64]:
        """Return the integers with the client's own noise.

        Raises:
            ContractError: If the phase declares none.
        """
        for stage, task in self.bound:
            found = stage.noisy(sums, sigma, purpose, task)
            if found is not None:
                return found
        raise ContractError(f"{purpose}: give the phase an epsilon, for noise on the clients.")

    def contribute(self, outcome: Outcome) -> Contribution:
        """Pass what a client sends through the stages; its state also holds the stages' values."""
        sent = Contribution(outcome=outcome, up=outcome.up)
        for stage, task in self.bound:
            sent = stage.contribute(sent, task)
        stages = {
            f"{_OWN}{stage}/{name}": value
            for stage, tensors in sent.state.items()
            for name, value in tensors.items()
        }
        if not stages:
            return sent
        state = {**(sent.outcome.state or {}), **stages}
        return replace(sent, outcome=replace(sent.outcome, state=state))


def _kept_by(stage: Stage, kept: Kept) -> dict[str, Tensors]:
    return _inner(kept, f"{stage.name}/")


def _inner(named: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the entries whose names begin with a prefix, without the prefix."""
    return {n.removeprefix(prefix): value for n, value in named.items() if n.startswith(prefix)}
