"""The hooks of a strategy: a correction of clients' gradients, and a step of the server.

A strategy changes what clients minimise and how the server joins their results, for any module
whose parameters are averaged.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from coterie.config.component import Component
from coterie.contract import Tensors

Correction = Callable[[str, Tensor], Tensor | None]
"""A parameter's name and present value to what is added to its gradient; None for nothing."""


@dataclass(kw_only=True)
class Local:
    """A client's training under a strategy.

    Attributes:
        start: The global values of the trained parameters at the start of the round.
        server: The strategy's own values from the server.
        kept: What the strategy kept at this client; empty at first.
        steps: Parameter to its number of optimiser steps.
        rates: Parameter to the sum of its learning rates over these steps.
        momenta: Parameter to the momentum of its optimiser.
        gradients: Parameter to the sum of its gradients, uncorrected, each times the learning rate,
            if the strategy asks for them.
    """

    start: Tensors
    server: Tensors
    kept: Tensors
    steps: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    rates: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    momenta: dict[str, float] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Sent:
    """The values that a client sends and keeps after training under a strategy.

    Attributes:
        values: Values in place of the trained ones, by parameter; those that are not named stay.
        own: Values for the strategy on the server.
        kept: What stays at the client until its next round.
    """

    values: Tensors = field(default_factory=dict)
    own: Tensors = field(default_factory=dict)
    kept: Tensors = field(default_factory=dict)


class Strategy(Component):
    """The base of the strategies: federated averaging.

    Attributes:
        equal: Whether clients count alike, instead of by their numbers of samples.
        tells: Whether clients receive the strategy's values.
        hears: Whether clients send values for the strategy.
        steps: Whether it takes the server's step in `join`, so that no optimiser may.
        sums_gradients: Whether it needs `Local.gradients`.
    """

    equal: ClassVar[bool] = False
    tells: ClassVar[bool] = False
    hears: ClassVar[bool] = False
    steps: ClassVar[bool] = False
    sums_gradients: ClassVar[bool] = False

    def initial(self, parameters: Tensors) -> dict[str, Tensor]:
        """Return the strategy's values on the server before the first round; by default none."""
        return {}

    def correction(self, local: Local) -> Correction | None:
        """Return what is added to the gradients of this client; by default nothing."""
        return None

    def finish(self, local: Local, trained: Tensors) -> Sent:
        """Return what a client sends and keeps after its training.

        By default the trained values.
        """
        return Sent()

    def join(
        self, before: Tensors, mean: Tensors, own: Tensors, received: Tensors, share: float
    ) -> tuple[Tensors, Tensors]:
        """Return the server's next parameters and the strategy's next values.

        Args:
            before: The parameters before the round.
            mean: The mean of the clients' values.
            own: The strategy's values before the round.
            received: The mean of what clients sent for the strategy.
            share: Clients that took part, of all; known where clients count alike, else 1.
        """
        return mean, own


@contextmanager
def corrected(module: nn.Module, local: Local, strategy: Strategy) -> Iterator[None]:
    """Correct the gradients of a LightningModule before each step of its optimisers.

    Args:
        module: The module; its own `on_before_optimizer_step` is called first.
        local: Counts the steps.
        strategy: Says what is added; federated averaging needs neither corrections nor counts.
    """
    if type(strategy) is Strategy:
        yield
        return
    correction = strategy.correction(local)
    names = {value: name for name, value in module.named_parameters()}
    own: Callable[[Any], None] = module.on_before_optimizer_step  # type: ignore[assignment]

    def step(optimizer: Any) -> None:
        own(optimizer)
        for group in optimizer.param_groups:
            for value in group["params"]:
                name = names.get(value, "")
                if value.grad is not None and name in local.start:
                    _count(local, name, group)
                    if strategy.sums_gradients:
                        _add(local, name, value.grad, group)
                    added = None if correction is None else correction(name, value.detach())
                    if added is not None:
                        value.grad.add_(added)

    module.on_before_optimizer_step = step  # type: ignore[assignment]
    try:
        yield
    finally:
        del module.on_before_optimizer_step


def _count(local: Local, name: str, group: Mapping[str, Any]) -> None:
    local.steps[name] += 1
    local.rates[name] += float(group.get("lr", 0.0))
    local.momenta[name] = float(group.get("momentum", 0.0))


def _add(local: Local, name: str, gradient: Tensor, group: Mapping[str, Any]) -> None:
    found = gradient.detach() * float(group.get("lr", 0.0))
    local.gradients[name] = local.gradients[name].add_(found) if name in local.gradients else found
