"""A role for every entry of a model's state: averaged, kept, reset, or bookkeeping."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from torch import Tensor, nn

from coterie.contract.phase import Slots, Tensors, WeightedUpdate
from coterie.errors import ContractError

_STATISTICS = ("running_mean", "running_var")


def is_statistic(name: str) -> bool:
    """Return whether an entry is a running statistic of BatchNorm, which no step trains."""
    return name.rpartition(".")[2] in _STATISTICS


def is_variance(name: str) -> bool:
    """Return whether an entry is a running variance of BatchNorm."""
    return name.rpartition(".")[2] == "running_var"


class Role(Enum):
    """What happens to an entry of the state between two tasks of a client."""

    AVERAGE = "average"
    """Belongs to a slot: the server offers it, clients send it back, the server averages it."""
    KEEP = "keep"
    """Stays with the client from task to task and is never sent."""
    RESET = "reset"
    """Starts each task from the model's initial value and is never sent."""
    NOBODY = "nobody"
    """Bookkeeping that no computation reads; starts again in each task and is never sent."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One role: the entries whose name matches the shell-style pattern.

    Attributes:
        pattern: For example "target.*".
        role: What happens to them.
        slot: The slot that they belong to; only under `Role.AVERAGE`.
    """

    pattern: str
    role: Role
    slot: str = ""


class StateRoles:
    """The roles of a model's `state_dict`; the first match wins.

    `num_batches_tracked` of BatchNorm always falls under `Role.NOBODY`: no computation reads it
    where BatchNorm has a momentum, as in all our networks.
    """

    def __init__(self, *entries: Entry) -> None:
        bookkeeping = Entry(pattern="*num_batches_tracked", role=Role.NOBODY)
        self._entries = (bookkeeping, *entries)

    @property
    def averaged(self) -> frozenset[str]:
        """The slots of the entries under `Role.AVERAGE`."""
        return frozenset(e.slot for e in self._entries if e.role is Role.AVERAGE)

    def of(self, key: str) -> Entry:
        """Return the role of a state entry.

        Raises:
            ContractError: If the entry has no role.
        """
        for entry in self._entries:
            if fnmatchcase(key, entry.pattern):
                return entry
        raise ContractError(f"State entry {key!r} has no role; add one to the method's StateRoles.")

    def check(self, module: nn.Module) -> None:
        """Raise a ContractError unless every entry of the module's state has a role."""
        for key in module.state_dict():
            self.of(key)

    def slot(self, module: nn.Module, slot: str) -> dict[str, Tensor]:
        """Return the module's entries of a slot, detached, on the CPU.

        Integers and booleans that no role names in full are constants of the network, such as an
        index: they stay as they are built and are never sent.
        """
        named = {entry.pattern for entry in self._entries}
        found = self._select(module, lambda e: e.role is Role.AVERAGE and e.slot == slot)
        return {k: v for k, v in found.items() if k in named or not _is_whole(v)}

    def slots(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensors]:
        """Return several slots of the module by name, in alphabetical order."""
        return {name: self.slot(module, name) for name in sorted(names)}

    def contributions(
        self, module: nn.Module, names: Collection[str], *, weight: int
    ) -> dict[str, WeightedUpdate]:
        """Return what a client sends up: several slots of the module, each with its weight."""
        slots = self.slots(module, names)
        return {
            name: WeightedUpdate(weight=weight, tensors=tensors) for name, tensors in slots.items()
        }

    def kept(self, module: nn.Module) -> dict[str, Tensor]:
        """Return the module's entries under `Role.KEEP`, detached, on the CPU."""
        return self._select(module, lambda entry: entry.role is Role.KEEP)

    def keep_only(self, tensors: Tensors) -> dict[str, Tensor]:
        """Return those of the tensors whose role is `Role.KEEP`."""
        return {key: value for key, value in tensors.items() if self.of(key).role is Role.KEEP}

    def _select(self, module: nn.Module, wanted: Callable[[Entry], bool]) -> dict[str, Tensor]:
        state = module.state_dict()
        return {k: v.detach().cpu().clone() for k, v in state.items() if wanted(self.of(k))}


def _is_whole(value: Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def load_tensors(module: nn.Module, tensors: Tensors) -> None:
    """Copy tensors into the module's state; entries not named keep their values.

    Raises:
        ContractError: If a name is not in the module's state or a shape differs.
    """
    state = module.state_dict()
    for key, value in tensors.items():
        if key not in state:
            raise ContractError(f"State entry {key!r} is not in the model; send only what it has.")
        if state[key].shape != value.shape:
            shapes = f"{tuple(value.shape)} for {tuple(state[key].shape)}"
            raise ContractError(
                f"State entry {key!r} has shape {shapes}; check the encoder's config."
            )
    for key, value in tensors.items():
        state[key].copy_(value)


def load_slots(module: nn.Module, slots: Slots) -> None:
    """Copy the tensors of every slot into the module's state."""
    for tensors in slots.values():
        load_tensors(module, tensors)
