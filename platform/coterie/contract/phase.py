"""The unit of the round loop, and what passes between server, clients and peers.

A phase is: slots down, one turn of each client in the cohort, contributions up, mail to peers.
A round is one or more phases. Whatever a method sends has to be declared here first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

Tensors = Mapping[str, Tensor]
"""Named tensors, such as a part of a `state_dict`."""

Slots = Mapping[str, Tensors]
"""Named parts of the server's state: "encoder", "head/2", "centroids"."""

Fact = str | int | float | bool | None | list["Fact"] | dict[str, "Fact"]
"""What the server may remember besides tensors: anything JSON can hold."""

Cohort = float | int | tuple[int, ...]
"""Who takes part: a fraction (float), a count (int), or the clients' ids (tuple)."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of a run, as the method asks for it.

    Attributes:
        name: What happens in it, for humans and for the metrics.
        stage: The stage of training it belongs to.
        round: The round, from 1.
        step: The phase's number within its round, from 0.
        cohort: Who takes part.
        down: Slots offered to the clients; an unchanged version is neither resent nor counted.
        up: Slots that may come back and are averaged; none means no aggregation.
        records: Tensors that may come back and are gathered in client order, never averaged.
        mail: Keys that one client may send to another.
        metrics: Scalars about the training that may come back, for people to watch.
        minima: Those of `metrics` that the run's row has the clients' minimum of; it has the mean
            of the others, weighted by numbers of samples.
        ends_round: Whether the round ends with it, so that evaluation and checkpoints may follow.
    """

    name: str
    stage: str
    round: int
    step: int = 0
    cohort: Cohort = 1.0
    down: frozenset[str] = frozenset()
    up: frozenset[str] = frozenset()
    records: frozenset[str] = frozenset()
    mail: frozenset[str] = frozenset()
    metrics: frozenset[str] = frozenset()
    minima: frozenset[str] = frozenset()
    ends_round: bool = True


@dataclass(frozen=True, kw_only=True)
class Mean:
    """A weighted mean of tensors; two add up: (w, m) + (v, n) = (w + v, (w m + v n)/(w + v)).

    A client contributes its tensors with its weight; the server receives the mean over the cohort
    with the total weight. The sum in between is exact, so its order does not matter.

    Attributes:
        weight: A positive integer, as a rule the number of samples.
        tensors: Floating tensors, with the names and shapes of the server's slot.
    """

    weight: int
    tensors: Tensors


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one client's turn gives.

    Attributes:
        up: Slot to contribution, each declared in the phase's `up`.
        records: Tensors for the server, each declared in the phase's `records`.
        state: What the client keeps for its next turn; None drops what it had.
        mail: Recipient to tensors, kept until the recipient runs next.
        metrics: Scalars about the training, each declared in the phase's `metrics`.
    """

    up: Mapping[str, Mean] = field(default_factory=dict)
    records: Tensors = field(default_factory=dict)
    state: Tensors | None = None
    mail: Mapping[int, Tensors] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """All that the server knows between phases; a checkpoint of it resumes the method.

    Attributes:
        round: Rounds completed.
        step: Phases completed in the round under way.
        slots: Named tensors, as they are offered to clients.
        facts: Anything else the method needs to choose its next phase, as JSON.
        renewed: Slots that the server half has just drawn anew, so that the server's optimiser
            forgets what it knew of them; empty again after the next phase.
    """

    slots: Slots
    round: int = 0
    step: int = 0
    facts: Mapping[str, Fact] = field(default_factory=dict)
    renewed: frozenset[str] = frozenset()

    def advance(
        self, phase: Phase, slots: Slots, facts: Mapping[str, Fact] | None = None
    ) -> "ServerState":
        """The state after `phase`: these slots replaced, these facts set, the counters moved on."""
        return replace(
            self,
            round=phase.round if phase.ends_round else self.round,
            step=0 if phase.ends_round else phase.step + 1,
            slots={**self.slots, **slots},
            facts={**self.facts, **(facts or {})},
            renewed=frozenset(),
        )
