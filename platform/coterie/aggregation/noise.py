"""Differential privacy of a run: noise on the sums, and the ε that they have spent.

A phase's sum is an exact vector of integers; the noise is a discrete Gaussian of the same lattice.
n sums of which one client (or sample) is part cost what n Gaussian mechanisms cost: the discrete
one has the Rényi divergences of the continuous one at most (Canonne et al., 2020, theorem 4).

Noise is a function of a secret key, the phase and the sum. So a phase that runs again releases
the same numbers and spends nothing; if its sum is another one, its noise is fresh, and is paid for.
"""

import hmac
import math
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from coterie.config.method import MethodConfig
from coterie.config.privacy import DPConfig
from coterie.contract.accounting import epsilon
from coterie.contract.phase import Mean, Phase, Tensors
from coterie.contract.rules import is_statistic
from coterie.errors import ConfigError, ContractError, RunError
from coterie.execution.clipping import STEPS, Sensitivity
from coterie.execution.discrete_gaussian import Stream, discrete_gaussian
from coterie.execution.events import Order
from coterie.execution.exact import ExactMeans
from coterie.execution.record_noise import RecordNoise

Fetch = Callable[[str], Tensors]
"""A slot, as clients received it."""

_OTHERS = "choose a method whose clients send model updates only, such as fedavg, or concord."


@dataclass(frozen=True)
class Spent:
    """A noisy sum that was released.

    Attributes:
        round: Its round.
        step: Its step within the round.
        tag: A keyed digest of the exact sum.
        clients: The clients that were asked to take part.
    """

    round: int
    step: int
    tag: str
    clients: tuple[int, ...]


@dataclass
class Privacy:
    """The noise of a run, and what it has spent.

    Attributes:
        config: Clip, noise and budget.
        secret: The key of the noise, 32 bytes.
        spent: Sums released so far, in order; a resumed run's have those before it.
        record: Called with a sum before it is released, to write it down.
        epochs: In how many noisy sums of a phase a client or sample is: one, or where clients train
            with noise, one an epoch.
    """

    config: DPConfig
    secret: bytes
    spent: list[Spent] = field(default_factory=list)
    record: Callable[[Spent], None] = lambda _: None
    epochs: int = 1

    def affords(self, phase: Phase, clients: Collection[int]) -> bool:
        """Whether the budget allows the phase; one that has been paid for before, it does."""
        if self.config.budget is None or not phase.up or not clients:
            return True
        place = (phase.round, phase.step)
        if any((known.round, known.step) == place for known in self.spent):
            return True
        next_ = Spent(*place, tag="", clients=tuple(clients))
        return self._cost([*self.spent, next_]) <= self.config.budget

    def release(self, order: Order, sums: ExactMeans, received: Fetch) -> dict[str, Mean]:
        """Each slot's mean with noise, for all slots that clients may send.

        Args:
            order: The phase that has run.
            sums: The exact sums over its clients.
            received: Gives the slots that they received.

        Returns:
            Slot to what it was plus the sum by the number of clients that were asked, whether or
            not they answered; for sums over samples, the sum itself. Its weight is 1. Running
            statistics, of which clients send no update, stay what they were, without noise.
        """
        bound = order.sensitivity
        if not order.layouts:
            return {}
        if bound is None:  # clients have trained with noise
            self._pay(order, self._tag(_place(order.phase), _bytes(order, sums)).hex())
            return sums.result()
        whole = _whole(order, sums)
        tag = self._tag(f"{_place(order.phase)}{sigma(self.config, bound)} ", whole.tobytes())
        self._pay(order, tag.hex())
        stream = Stream(hmac.digest(self.secret, b"noise " + tag, "sha256"))
        noise = discrete_gaussian(stream, sigma(self.config, bound), len(whole))
        noisy = whole + np.where(_statistics(order), 0, noise)
        count = len(order.turns) if bound.clips else 1
        means, start = {}, 0
        for slot in sorted(order.layouts):
            layout = order.layouts[slot]
            flat = torch.from_numpy(noisy[start : start + layout.elements]).double()
            start += layout.elements
            if bound.clips:
                flat = layout.flatten(received(slot)).double() + flat / STEPS / count
            else:
                flat = flat / STEPS
            means[slot] = Mean(weight=1, tensors=layout.restore(flat))
        return means

    def training(self, phase: Phase, client: int) -> RecordNoise | None:
        """The noise of a client's training in a phase; None where sums are noised instead."""
        if self.config.unit == "client" or phase.sensitivity is not None:
            return None
        assert self.config.clip is not None
        assert self.config.noise_multiplier is not None
        context = f"training {_place(phase)}{client}".encode()
        return RecordNoise(
            clip=self.config.clip,
            sigma=math.ceil(Fraction(self.config.noise_multiplier) * STEPS),
            epochs=self.epochs,
            key=hmac.digest(self.secret, context, "sha256"),
        )

    def epsilon(self, phase: Phase | None = None) -> float:
        """ε of all sums released up to a phase, by default of all."""
        spent = self.spent
        if phase is not None:
            place = (phase.round, phase.step)
            before = [n for n, known in enumerate(spent, 1) if (known.round, known.step) <= place]
            spent = spent[: max(before, default=0)]
        return self._cost(spent)

    def spending(self) -> dict[str, float]:
        """ε of all sums so far, and its δ."""
        return {"epsilon": self.epsilon(), "delta": self.config.delta}

    def _tag(self, context: str, whole: bytes) -> bytes:
        return hmac.digest(self.secret, b"sum " + context.encode() + whole, "sha256")

    def _pay(self, order: Order, tag: str) -> None:
        clients = tuple(turn.client for turn in order.turns)
        entry = Spent(order.phase.round, order.phase.step, tag, clients)
        if entry in self.spent:
            return
        budget = self.config.budget
        if budget is not None and self._cost([*self.spent, entry]) > budget:  # run again, otherwise
            raise RunError(
                f"Round {entry.round} ran again with another sum, and privacy.dp.budget={budget} "
                "does not pay for a second one; go on from where the run was with the same data, "
                "clients and hardware."
            )
        self.record(entry)
        self.spent.append(entry)

    def _cost(self, spent: Collection[Spent]) -> float:
        """The ε of the client that was asked most often: who is asked depends on no data."""
        asked = Counter(chain.from_iterable(entry.clients for entry in spent))
        assert self.config.noise_multiplier is not None  # as there is a clip
        releases = self.epochs * max(asked.values(), default=0)
        return epsilon(releases, self.config.noise_multiplier, self.config.delta)


def turn_secret(secret: bytes, phase: Phase, client: int) -> bytes:
    """The key of noise that a client adds to its own records in a phase.

    Raises:
        ValueError: If there is no secret.
    """
    if not secret:
        raise ValueError(f"phase {phase.name!r} has an ε; give the loop a secret")
    return hmac.digest(secret, f"records {_place(phase)}{client}".encode(), "sha256")


def sensitivity(config: DPConfig, phase: Phase, method: type[MethodConfig]) -> Sensitivity | None:
    """What one client, or one sample, adds to a phase's sums at most; None without privacy.

    Raises:
        ConfigError: If clients send what cannot be bounded.
    """
    if config.clip is None:
        return None
    key = f"privacy.dp.clip={config.clip:g}"
    for kind, keys in (("record", phase.records), ("mail", phase.mail)):
        if keys:
            raise ConfigError(
                f"{key}: clients send the {kind} {sorted(keys)[0]!r} in phase {phase.name!r}, "
                f"which no noise protects; {_OTHERS}"
            )
    if phase.sensitivity is not None:
        return Sensitivity(math.ceil(Fraction(phase.sensitivity) * STEPS), clips=False)
    if config.unit == "record":
        if method.uncoupled:
            return None
        raise ConfigError(
            "privacy.dp.unit=record: in the loss of the method no sample has a gradient of its "
            "own, as it compares samples or keeps to sums; choose fedavg or moon, or "
            "privacy.dp.unit=client."
        )
    if method.sums or (phase.up - phase.down):
        slot = sorted(phase.up - phase.down or phase.up)[0]
        raise ConfigError(
            f"{key}: what clients send in slot {slot!r} of phase {phase.name!r} is no update of "
            f"what they received, and cannot be clipped; {_OTHERS}"
        )
    return Sensitivity(math.floor(Fraction(config.clip) * STEPS), clips=True)


def sigma(config: DPConfig, bound: Sensitivity) -> int:
    """The noise's standard deviation in units of 2^-20, rounded up."""
    assert config.noise_multiplier is not None
    return math.ceil(Fraction(config.noise_multiplier) * bound.steps)


def _place(phase: Phase) -> str:
    return f"{phase.round} {phase.step} "


def _bytes(order: Order, sums: ExactMeans) -> bytes:
    """All slots' sums, as they are."""
    found = [sums.lanes.get(slot) or order.layouts[slot].zeros() for slot in sorted(order.layouts)]
    lanes = [lane.long().numpy().tobytes() for each in found for lane in (each.high, each.low)]
    return b"".join(lanes)


def _statistics(order: Order) -> NDArray[np.bool_]:
    """Which elements of all slots are running statistics: their update is zero for any data."""
    layouts = [order.layouts[slot] for slot in sorted(order.layouts)]
    fields = [pair for of in layouts for pair in zip(of.names, of.shapes, strict=True)]
    sizes = [math.prod(shape) for _, shape in fields]
    return np.repeat([is_statistic(name) for name, _ in fields], sizes)


def _whole(order: Order, sums: ExactMeans) -> NDArray[np.int64]:
    """All slots' sums as one vector of integers, in units of 2^-20; zeros where nobody sent any."""
    parts = []
    for slot in sorted(order.layouts):
        lanes = sums.lanes.get(slot) or order.layouts[slot].zeros()
        if lanes.low.any():
            raise ContractError(
                f"Slot {slot!r}: under privacy.dp sums over samples are multiples of 2^-20; round "
                "what a client sends."
            )
        parts.append(lanes.high.long().numpy())
    return np.concatenate(parts)
