"""Repeats the first pass of gradient caching: generators, autocast, and sums of gradients."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from coterie.errors import ContractError


@dataclass(frozen=True)
class Generators:
    """States of the random generators: the CPU's and, for samples on a GPU, the GPU's."""

    device: torch.device
    states: list[Tensor]

    @classmethod
    def now(cls, samples: Tensor) -> "Generators":
        """Return the present state, for samples on their device."""
        states = [torch.get_rng_state()]
        if samples.is_cuda:
            states.append(torch.cuda.get_rng_state(samples.device))
        return cls(samples.device, states)

    def shared(self, others: "Sequence[Generators]") -> "Generators":
        """Return the last of the others if it is equal to this one, to save memory.

        Saves memory for networks that draw nothing.
        """
        same = others and all(map(torch.equal, others[-1].states, self.states))
        return others[-1] if same else self

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Set the generators to this state; restore them afterwards."""
        cpu, *cuda = self.states
        with torch.random.fork_rng(devices=[self.device] if cuda else []):
            torch.set_rng_state(cpu)
            for state in cuda:
                torch.cuda.set_rng_state(state, self.device)
            yield


class Sums:
    """Two-level sums of gradients: a thousand small ones added one by one would lose digits."""

    _TOGETHER = 16

    def __init__(self) -> None:
        self._recent: dict[nn.Parameter, Tensor] = {}
        self._totals: dict[nn.Parameter, Tensor] = {}
        self._added = 0

    def add(self, gradients: Iterable[tuple[nn.Parameter, Tensor | None]]) -> None:
        """Add one micro-batch's gradients."""
        _add(self._recent, ((p, g.clone()) for p, g in gradients if g is not None))
        self._added += 1
        if self._added % self._TOGETHER == 0:
            self.totals()

    def totals(self) -> dict[nn.Parameter, Tensor]:
        """Return the sums so far."""
        _add(self._totals, self._recent.items())
        self._recent = {}
        return self._totals


def _add(
    sums: dict[nn.Parameter, Tensor], gradients: Iterable[tuple[nn.Parameter, Tensor]]
) -> None:
    for parameter, gradient in gradients:
        if parameter in sums:
            sums[parameter] += gradient
        else:
            sums[parameter] = gradient


def autocast_now() -> Callable[[], AbstractContextManager[Any]]:
    """Return a factory of the present autocast context, for later use."""
    kind = "cuda" if torch.cuda.is_available() and torch.is_autocast_enabled("cuda") else "cpu"
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return lambda: torch.autocast(kind, dtype=dtype, enabled=enabled)


def check_leaves(loss: Tensor, leaves: Sequence[Tensor]) -> None:
    """Raise a ContractError if the loss depends on other leaves, whose gradient would be lost."""
    known, seen, waiting = {id(leaf) for leaf in leaves}, set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) not in known:
            raise ContractError(
                f"The cached loss trains parameters of shape {tuple(variable.shape)} itself; put "
                "their network into a segment."
            )
        waiting += [following for following, _ in node.next_functions]
