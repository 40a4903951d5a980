"""Differential privacy of a run: clipped updates, noise on the sums, and the ε that they spend.

A phase's sum is an exact vector of integers; the noise is a discrete Gaussian of the same lattice.
n sums of which one client (or sample) is part cost what n Gaussian mechanisms cost: the discrete
one has the Rényi divergences of the continuous one at most (Canonne et al., 2020, theorem 4).

Noise is a function of a secret key, the phase and the sum. So a phase that runs again releases
the same numbers and spends nothing; if its sum is another one, its noise is fresh, and is paid for.
"""

import hmac
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import ClassVar

import numpy as np
import torch
from lightning import LightningModule
from numpy.typing import NDArray

from coterie.aggregation.clipping import STEPS, Sensitivity, clipped
from coterie.aggregation.discrete_gaussian import Stream, discrete_gaussian
from coterie.aggregation.exact import ExactMeans, totals
from coterie.aggregation.noise_checks import check_noise, sensitivity, sigma, sums_a_phase
from coterie.aggregation.sample_noise import SampleNoise, noisy_training
from coterie.aggregation.stage import (
    Contribution,
    PhaseRun,
    Sent,
    Stage,
    StageTask,
    Start,
    require_sum,
)
from coterie.config.privacy import DPConfig
from coterie.config.schema import RunConfig
from coterie.contract.accounting import epsilon
from coterie.contract.client import Plan
from coterie.contract.phase import Phase, WeightedUpdate
from coterie.contract.roles import is_statistic
from coterie.errors import ContractError, RunError


@dataclass(frozen=True)
class Spent:
    """A noisy sum that was released.

    Attributes:
        tag: A keyed digest of the exact sum.
        clients: The clients that were asked to take part.
    """

    round: int
    step: int
    tag: str
    clients: tuple[int, ...]


@dataclass
class NoiseLedger:
    """The key of a run's noise, and the sums that were released with it.

    Attributes:
        secret: The key, 32 bytes.
        spent: Sums released so far, in order; a resumed run's have those before it.
        record: Called with a sum before it is released, to write it down.
    """

    secret: bytes
    spent: list[Spent] = field(default_factory=list)
    record: Callable[[Spent], None] = lambda _: None


class Noise(Stage):
    """Stage that clips what clients send and adds noise to the sum, or has them train with noise.

    Args:
        ledger: Key and expenses of the run; the driver alone has them.
    """

    name: ClassVar[str] = "noise"

    def __init__(self, config: RunConfig, ledger: NoiseLedger | None = None) -> None:
        self._config = config
        self._ledger = ledger
        self._epochs = sums_a_phase(config)

    @property
    def _dp(self) -> DPConfig:
        return self._config.privacy.dp

    @property
    def _unit(self) -> str:
        """What ε protects: sums over samples change by one sample, updates by one client."""
        return "sample" if type(self._config.method).sums else self._dp.unit

    @property
    def ledger(self) -> NoiseLedger:
        """The noise key and the sums released so far.

        Raises:
            ValueError: In a process that has none.
        """
        if self._ledger is None:
            raise ValueError("privacy.dp asks for noise; compose the stages with a NoiseLedger")
        return self._ledger

    def check(self, start: Start) -> None:
        """Refuse what cannot be made private, and a budget below the cost of one sum."""
        check_noise(start)

    def ends(self, phase: Phase, clients: Sequence[int]) -> str:
        """Return a sentence if the next phase would exceed the budget, which ends the run."""
        if self.affords(phase, clients):
            return ""
        return (
            f"Ended before round {phase.round}: it would exceed "
            f"privacy.dp.budget={self._dp.budget:g}, of which ε={self.epsilon():.3g} is spent."
        )

    def affords(self, phase: Phase, clients: Collection[int]) -> bool:
        """Return whether the budget allows the phase; a phase that was paid for before is free."""
        if self._dp.budget is None or not phase.up or not clients:
            return True
        where = (phase.round, phase.step)
        if any((known.round, known.step) == where for known in self.ledger.spent):
            return True
        next_ = Spent(*where, tag="", clients=tuple(clients))
        return self._cost([*self.ledger.spent, next_]) <= self._dp.budget

    def request(self, run: PhaseRun) -> Sensitivity | None:
        """Return the sensitivity of the sums; None where clients train with noise."""
        assert self.ledger  # before anything is sent
        return sensitivity(self._dp, run.phase, type(self._config.method))

    def tasks(self, run: PhaseRun) -> Mapping[int, SampleNoise]:
        """Return the noise of each client's training; empty where sums are noised instead."""
        if self._dp.unit == "client" or run.phase.sensitivity is not None:
            return {}
        return {client: self._training(run.phase, client) for client in run.sizes}

    def training(
        self, module: LightningModule, plan: Plan, task: StageTask
    ) -> AbstractContextManager[None]:
        """Have the module's optimiser step by noisy gradients, if the task asks for it."""
        noise: SampleNoise | None = task.data
        if noise is None:
            return nullcontext()
        task.epochs.append(noise.epochs + 1 if plan.epochs is None else plan.epochs)
        return noisy_training(module, plan, noise, sum(task.epochs))

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Clip the update, and drop everything else that no noise protects."""
        require_sum(sent, "privacy.dp")
        bound: Sensitivity | None = task.phase_data
        hidden = replace(
            sent,
            outcome=replace(sent.outcome, metrics={}, note=""),
            smallest={key: n for key, n in sent.smallest.items() if key not in sent.outcome.up},
        )
        if bound is None or not bound.clips:
            return hidden
        return replace(hidden, up=clipped(sent.up, task.received, task.layouts, bound.steps))

    def hides(self, task: StageTask) -> bool:
        """Return True: a traceback could show what the noise hides."""
        return True

    def total(self, run: PhaseRun, sums: ExactMeans) -> Mapping[str, WeightedUpdate]:
        """Return each slot's mean with noise, also for slots that nobody contributed to.

        Returns:
            Slot to what it was plus the sum by the number of clients that were asked, whether or
            not they answered; for sums over samples, the sum itself. Its weight is 1. Running
            statistics, of which clients send no update, stay what they were, without noise.
        """
        bound: Sensitivity | None = run.data.get(self.name)
        if not run.layouts:
            return {}
        if bound is None:  # clients have trained with noise
            self._pay(run, self._tag(place(run.phase), _bytes(run, sums)).hex())
            return sums.result()
        whole, deviation = _whole(run, sums), sigma(self._dp, bound.steps)
        tag = self._tag(f"{place(run.phase)}{deviation} ", whole.tobytes())
        self._pay(run, tag.hex())
        stream = Stream(hmac.digest(self.ledger.secret, b"noise " + tag, "sha256"))
        noise = discrete_gaussian(stream, deviation, len(whole))
        if bound.clips:  # clients send no update of running statistics
            noise = np.where(_statistics(run), 0, noise)
        noisy = torch.from_numpy(whole + noise).double() / STEPS
        layouts = {slot: run.layouts[slot] for slot in sorted(run.layouts)}
        parts = torch.split(noisy, [layout.elements for layout in layouts.values()])
        means = {}
        for (slot, layout), part in zip(layouts.items(), parts, strict=True):
            if bound.clips:  # a sum of updates
                part.div_(len(run.sizes)).add_(layout.flatten(run.offered[slot]))
            means[slot] = WeightedUpdate(weight=1, tensors=layout.restore(part))
        return means

    def audit(
        self, rows: Sequence[Sent], run: PhaseRun, means: Mapping[str, WeightedUpdate]
    ) -> Sequence[Sent]:
        """Leave out of the audit how large the groups are behind sums that carry noise."""
        bound: Sensitivity | None = run.data.get(self.name)
        if bound is None or bound.clips:
            return rows
        return [replace(row, samples=None) if row.type == "slot" else row for row in rows]

    def metrics(self, phase: Phase) -> Mapping[str, float]:
        """Return the ε that was spent up to a phase."""
        return {"epsilon": self.epsilon(phase)}

    def summary(self) -> Mapping[str, float | str]:
        """Return the ε of all noisy sums, its δ, and the unit protected: client or sample."""
        return {"epsilon": self.epsilon(), "delta": self._dp.delta, "unit": self._unit}

    def count(self) -> int:
        """Return the number of released sums, which must agree with the file of a resumed run."""
        return 0 if self._ledger is None else len(self._ledger.spent)

    def epsilon(self, phase: Phase | None = None) -> float:
        """Return the ε of all sums released up to a phase, by default of all."""
        spent = self.ledger.spent
        if phase is not None:
            where = (phase.round, phase.step)
            before = [n for n, known in enumerate(spent, 1) if (known.round, known.step) <= where]
            spent = spent[: max(before, default=0)]
        return self._cost(spent)

    def _training(self, phase: Phase, client: int) -> SampleNoise:
        assert self._dp.clip is not None
        context = f"training {place(phase)}{client}".encode()
        return SampleNoise(
            clip=self._dp.clip,
            sigma=sigma(self._dp, STEPS),
            epochs=self._epochs,
            key=hmac.digest(self.ledger.secret, context, "sha256"),
        )

    def _tag(self, context: str, whole: bytes) -> bytes:
        return hmac.digest(self.ledger.secret, b"sum " + context.encode() + whole, "sha256")

    def _pay(self, run: PhaseRun, tag: str) -> None:
        entry = Spent(run.phase.round, run.phase.step, tag, tuple(run.sizes))
        if entry in self.ledger.spent:
            return
        budget = self._dp.budget
        # It can be too little only for a phase that runs again.
        if budget is not None and self._cost([*self.ledger.spent, entry]) > budget:
            raise RunError(
                f"Round {entry.round} ran again with another sum, and privacy.dp.budget={budget} "
                "does not cover a second one; resume with the same data, clients and hardware as "
                "before."
            )
        self.ledger.record(entry)
        self.ledger.spent.append(entry)

    def _cost(self, spent: Collection[Spent]) -> float:
        """Return the ε of the client that took part most often; no data decides who takes part."""
        asked = Counter(chain.from_iterable(entry.clients for entry in spent))
        assert self._dp.noise_multiplier is not None  # else `check_noise` refuses
        releases = self._epochs * max(asked.values(), default=0)
        return epsilon(releases, self._dp.noise_multiplier, self._dp.delta)


def place(phase: Phase) -> str:
    """Return a phase's place in the run, from which its noise key is derived."""
    return f"{phase.round} {phase.step} "


def _bytes(run: PhaseRun, sums: ExactMeans) -> bytes:
    """Return the bytes of all slots' sums."""
    found = totals(sums.sums, run.layouts).values()
    limbs = (limb for total in found for limb in (total.high, total.low))
    return b"".join(limb.long().numpy().tobytes() for limb in limbs)


def _statistics(run: PhaseRun) -> NDArray[np.bool_]:
    """Return which elements of all slots are running statistics, whose update is set to zero."""
    layouts = [run.layouts[slot] for slot in sorted(run.layouts)]
    statistics = [is_statistic(name) for layout in layouts for name in layout.names]
    return np.repeat(statistics, [size for layout in layouts for size in layout.sizes])


def _whole(run: PhaseRun, sums: ExactMeans) -> NDArray[np.int64]:
    """Return all slots' sums as one vector of integers in units of 2^-20, zeros if absent."""
    parts = []
    for slot, total in totals(sums.sums, run.layouts).items():
        if total.low.any():
            raise ContractError(
                f"Slot {slot!r}: under privacy.dp sums over samples have to be multiples of "
                "2^-20; round what a client sends."
            )
        parts.append(total.high.long().numpy())
    return np.concatenate(parts)
