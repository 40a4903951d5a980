"""Clients with masked sums, without a method: messages are kept, and processes may die."""

from dataclasses import dataclass, field

import torch

from coterie.aggregation.exact import ExactMeans, Layout
from coterie.aggregation.masked_sums import MaskedSums, encode
from coterie.aggregation.stage import PhaseRun
from coterie.contract.phase import Phase, WeightedUpdate
from coterie.execution.events import PhaseRequest

PHASE = Phase(name="train", stage="s", round=3, up=frozenset({"a", "b"}))
LAYOUTS = {
    "a": Layout.of({"x": torch.zeros(3), "y": torch.zeros(2, 2)}),
    "b": Layout.of({"z": torch.zeros(1, dtype=torch.float64)}),
}
REQUEST = PhaseRequest(phase=PHASE, slots={}, layouts=LAYOUTS, tasks=(), key="one")


def phase_run(layouts=LAYOUTS, clients=()):
    """The phase as the stages see it."""
    return PhaseRun(
        phase=PHASE,
        sizes=dict.fromkeys(clients, 2),
        offered={},
        server={},
        layouts=layouts,
        data={"masking": True},
    )


def contribution(values, weight, *, both=True):
    """Eight numbers as contributions to one slot or both."""
    given = torch.tensor(values)
    a = WeightedUpdate(weight=weight, tensors={"x": given[:3], "y": given[3:7].reshape(2, 2)})
    b = WeightedUpdate(weight=weight + 1, tensors={"z": given[7:].double()})
    return {"a": a, "b": b} if both else {"a": a}


def unmasked(contributions, layouts=LAYOUTS):
    """The exact sums without masks."""
    means = ExactMeans(dict(layouts))
    for each in contributions:
        means.add(0, each)
    return means.sums


def same_sums(one, other, layouts=LAYOUTS):
    equal = one.keys() == other.keys()
    return equal and (encode(one, layouts) == encode(other, layouts)).all()


@dataclass
class Processes:
    """Calls that hold masked sums; some die at a step, before they answer.

    Attributes:
        calls: Call to client to contribution.
        dies: Call to the step at which it dies.
        seen: Step, call, message and answer, as the driver sees them.
    """

    calls: dict
    dies: dict = field(default_factory=dict)
    layouts: dict = field(default_factory=lambda: LAYOUTS)
    seen: list = field(default_factory=list)

    def __post_init__(self):
        self.held = MaskedSums()
        for call, clients in self.calls.items():
            masked = self.held.begin("one", call, self.layouts)
            for client, given in clients.items():
                masked.add(client, given)

    @property
    def clients(self):
        return {call: frozenset(clients) for call, clients in self.calls.items()}

    def exchange(self, step, messages):
        answers = {}
        for call, message in messages.items():
            if self.dies.get(call) != step:
                answers[call] = self.held.take(call, step, message)
                self.seen.append((step, call, message, answers[call]))
        return answers
