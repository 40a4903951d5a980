"""A phase, the unit of the round loop, and the messages between server, clients and peers.

A phase is: slots down, one task of each client in the cohort, contributions up, messages to peers.
A round is one or more phases. A phase declares everything that its clients may send.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch
from torch import Tensor

from coterie.contract.tensor_spec import Bounds, TensorSpec
from coterie.errors import ContractError

Tensors = Mapping[str, Tensor]
"""Named tensors, such as a part of a `state_dict`."""

Slots = Mapping[str, Tensors]
"""Named parts of the server's state: "encoder", "head/2", "centroids"."""

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
"""What the server may remember besides tensors: any JSON value."""

_SUM_STEPS = 2.0**24

Cohort = float | int | tuple[int, ...]
"""The clients that take part: a fraction (float), a count (int), or their ids (tuple)."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a run, as the method asks for it.

    Attributes:
        name: A name for people and for the metrics.
        stage: The stage of training that it belongs to.
        round: The round, from 1.
        step: The phase's number within its round, from 0.
        cohort: The clients that take part.
        down: Slots offered to the clients; an unchanged version is neither resent nor counted.
        up: Slots that clients may send back to be averaged; empty means no aggregation.
        gathered: Tensors that clients may send; they are gathered in client order, never averaged.
        peer_messages: Keys of the messages that one client may send to another.
        recipients: Client to the clients that it may send messages to; None for all.
        metrics: Scalars about the training that clients may send, for people to watch.
        open_metrics: Whether clients may send metrics of other names too, as a user's module logs.
        minima: Those of `metrics` that are reported as the minimum over the clients; the others
            are reported as the mean, weighted by numbers of samples.
        specs: The spec of each of `gathered`, `peer_messages` and `metrics` by name. A client has
            to send all gathered tensors that have one; what has none is held to be real and finite.
        bounds: Of slots with sums over samples, each tensor's bounds by name; what lies beyond them
            is its client's failure.
        untrained: Slot to entries that no client trains, such as buffers: the server's optimiser
            takes their mean.
        repeats: How often a contribution's weight may count a sample: a client weighs at most so
            many times its number of samples.
        received: Samples from other clients that it may count beside its own.
        ends_round: Whether the round ends with this phase; evaluation and checkpoints may follow.
        sensitivity: For sums over samples: the L2 norm by which one sample changes the sum over
            all clients and slots at most, which clients see to; the sums are multiples of 2^-20.
            Without it, differential privacy clips what each client sends as an update.
        epsilon: The ε, up to this phase, of clients that add noise to their own gathered tensors,
            by `Client.noisy`; None where they add none.
    """

    name: str
    stage: str
    round: int
    step: int = 0
    cohort: Cohort = 1.0
    down: frozenset[str] = frozenset()
    up: frozenset[str] = frozenset()
    gathered: frozenset[str] = frozenset()
    peer_messages: frozenset[str] = frozenset()
    recipients: Mapping[int, frozenset[int]] | None = None
    metrics: frozenset[str] = frozenset()
    open_metrics: bool = False
    minima: frozenset[str] = frozenset()
    specs: Mapping[str, TensorSpec] = field(default_factory=dict)
    bounds: Mapping[str, Mapping[str, Bounds]] = field(default_factory=dict)
    untrained: Mapping[str, frozenset[str]] = field(default_factory=dict)
    repeats: float = 1.0
    received: int = 0
    ends_round: bool = True
    sensitivity: float | None = None
    epsilon: float | None = None


def read_only(phase: Phase) -> Phase:
    """Return the phase with read-only mappings for its clients; it cannot be pickled."""
    bounds = {slot: MappingProxyType(each) for slot, each in phase.bounds.items()}
    named = phase.recipients
    return replace(
        phase,
        recipients=None if named is None else MappingProxyType(named),
        specs=MappingProxyType(phase.specs),
        untrained=MappingProxyType(phase.untrained),
        bounds=MappingProxyType(bounds),
    )


@dataclass(frozen=True, kw_only=True)
class WeightedUpdate:
    """A weighted mean of tensors; two add up: (w, m) + (v, n) = (w + v, (w m + v n)/(w + v)).

    A client contributes its tensors with its weight; the server receives the mean over the cohort
    with the total weight. Sums are exact, so their order does not matter.

    Attributes:
        weight: A positive integer, usually the number of samples; see `Phase.repeats`.
        tensors: Floating tensors, with the names and shapes of the server's slot.
    """

    weight: int
    tensors: Tensors


def averaged(means: Mapping[str, WeightedUpdate]) -> dict[str, Tensors]:
    """Return the slots after federated averaging: each slot's mean, without its weight."""
    return {slot: mean.tensors for slot, mean in means.items()}


def summed(mean: WeightedUpdate) -> dict[str, Tensor]:
    """Return the sums over clients of tensors that each contributed with weight 1.

    Exact, whatever the number of clients, for sums that are multiples of 2^-24 below 2^28.
    """
    return {
        name: (value.double() * mean.weight * _SUM_STEPS).round() / _SUM_STEPS
        for name, value in mean.tensors.items()
    }


def concatenated(gathered: Mapping[int, Tensors], key: str) -> Tensor:
    """Concatenate one gathered tensor of every client along dimension 0, in client order."""
    return torch.cat([tensors[key] for tensors in gathered.values()])


def fewest(counts: Tensor) -> int:
    """Return the smallest of these numbers of samples above 0; 0 if there is none."""
    there = counts[counts > 0]
    return int(there.min()) if len(there) else 0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of one client's task.

    Attributes:
        up: Slot to contribution, each declared in the phase's `up`.
        gathered: Tensors for the server, each declared in the phase's `gathered`.
        state: What the client keeps for its next task; None drops what it had kept.
        peer_messages: Recipient to tensors, stored until the recipient's next task.
        metrics: Scalars about the training, each declared in the phase's `metrics`.
        smallest: Gathered tensor or key of a peer message to the fewest samples that a vector of it
            stands for, for the audit of the run; 1 for those that are not named.
        note: What people should know of the task, such as what was not sent; shown once.
    """

    up: Mapping[str, WeightedUpdate] = field(default_factory=dict)
    gathered: Tensors = field(default_factory=dict)
    state: Tensors | None = None
    peer_messages: Mapping[int, Tensors] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """All that the server knows between phases, from which a method resumes.

    Attributes:
        round: Rounds completed.
        step: Phases completed in the current round.
        slots: Named tensors, as they are offered to clients.
        metadata: Anything else that the method needs to choose its next phase, as JSON.
        renewed: Slots that the server half has just reinitialised. The server's optimiser drops
            its moments for them; empty again after the next phase.
    """

    slots: Slots
    round: int = 0
    step: int = 0
    metadata: Mapping[str, Json] = field(default_factory=dict)
    renewed: frozenset[str] = frozenset()

    def whole(self, key: str) -> int:
        """Return a metadata value as a whole number."""
        found = self.metadata.get(key)
        if not isinstance(found, int):
            raise ContractError(f"Metadata {key!r} is {found!r}; `init` has to set a whole number.")
        return found

    def advance(
        self, phase: Phase, slots: Slots, metadata: Mapping[str, Json] | None = None
    ) -> "ServerState":
        """Return the state after `phase`, with new slots, metadata and counters."""
        return replace(
            self,
            round=phase.round if phase.ends_round else self.round,
            step=0 if phase.ends_round else phase.step + 1,
            slots={**self.slots, **slots},
            metadata={**self.metadata, **(metadata or {})},
            renewed=frozenset(),
        )
