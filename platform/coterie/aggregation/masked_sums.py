"""Sums of masked contributions in one process, and the exact sums that unmasking gives.

All slots' sums, weights and bounds are one vector of 64-bit integers modulo 2⁶⁴. Under a mask each
is uniform, whatever the contribution; unmasked sums are within the exact range and do not wrap.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch

from coterie.aggregation.exact import ExactMeans, FixedPointSum, Layout, SumsExceededError, totals
from coterie.aggregation.masked_messages import PublicKeys
from coterie.aggregation.masks import Vector, add_mask
from coterie.aggregation.secure_party import Party
from coterie.contract.phase import WeightedUpdate
from coterie.errors import ContractError, RunError

SecureStep = Literal["advertise", "share", "mask", "reveal"]
"""A step of secure aggregation that the server asks clients to take."""
_REST = "Masks did not cancel: a client sent other numbers than agreed; go on with resume=true."


def encode(sums: Mapping[str, FixedPointSum], layouts: Mapping[str, Layout]) -> Vector:
    """Return the sums of all slots as one vector; a slot without contributions is zeros."""
    parts = []
    for found in totals(sums, layouts).values():
        parts += [found.high.long(), found.low.long(), torch.tensor([found.weight, found.bound])]
    return torch.cat(parts).numpy().view(np.uint64)


def decode(vector: Vector, layouts: Mapping[str, Layout]) -> dict[str, FixedPointSum]:
    """Return the exact sum of each slot with contributions.

    Raises:
        RunError: If the vector is not a sum in the exact range.
    """
    found, rest = {}, torch.from_numpy(vector.view(np.int64))
    for slot in sorted(layouts):
        total, size = layouts[slot].zeros(), layouts[slot].elements
        high, low, counts, rest = torch.split(rest, [size, size, 2, len(rest) - 2 * size - 2])
        weight, bound = counts.tolist()
        if weight < 0 or bound < 0:
            raise RunError(_REST)
        try:
            total.merge(FixedPointSum(high, low, weight, bound))
        except SumsExceededError as error:  # clients are held to far less
            raise RunError(_REST) from error
        if weight:
            found[slot] = total
    return found


def masked_bytes(layout: Layout) -> int:
    """Return the bytes of a masked contribution to a slot."""
    return 8 * (2 * layout.elements + 2)


class MaskedSum:
    """The sum of one call's clients, and their secrets.

    Args:
        layouts: Slot to layout.

    Attributes:
        vector: The sum, under the clients' own masks.
        parties: Client to its part.
        sums: Nothing: the sum stays here until it is opened.
    """

    def __init__(self, layouts: Mapping[str, Layout]) -> None:
        self._layouts = layouts
        self.vector = encode({}, layouts)
        self.parties: dict[int, Party] = {}
        self.sums: Mapping[str, FixedPointSum] = {}
        self._is_fresh = True

    def add(self, client: int, contributions: Mapping[str, WeightedUpdate]) -> None:
        """Mask a client's contributions, then add them: all or, if one is refused, none.

        Raises:
            ContractError: As `ExactMeans.add`.
            RunError: Likewise.
        """
        own = ExactMeans(dict(self._layouts))
        own.add(client, contributions)
        vector, party = encode(own.sums, self._layouts), Party(client)
        add_mask(vector, party.seed)
        self.vector += vector
        self.parties[client] = party

    def advertise(self, _: None) -> dict[int, PublicKeys]:
        """Return each client's keys; a further attempt also replaces the clients' own masks."""
        if not self._is_fresh:
            for party in self.parties.values():
                party.renew(self.vector)
        self._is_fresh = False
        return {client: party.advertise() for client, party in self.parties.items()}

    def share(self, directory: Mapping[int, PublicKeys]) -> dict[int, dict[int, bytes]]:
        """Return the sealed shares, by sender and recipient."""
        return {client: party.share(directory) for client, party in self.parties.items()}

    def mask(self, inboxes: Mapping[int, Mapping[int, bytes]]) -> Vector:
        """Return the sum under all masks, for the server.

        Raises:
            RunError: If a client's inbox is missing, or as `Party.mask`.
        """
        if not isinstance(inboxes, Mapping) or inboxes.keys() != self.parties.keys():
            raise RunError("A step of secure aggregation names clients that are not here.")
        masked = self.vector.copy()
        for client, party in self.parties.items():
            party.mask(masked, inboxes[client])
        return masked

    def reveal(self, survivors: frozenset[int]) -> dict[int, dict[int, bytes]]:
        """Return each client's shares for the server, and forget the sum."""
        self.vector = self.vector[:0]
        return {client: party.reveal(survivors) for client, party in self.parties.items()}


@dataclass
class MaskedSums:
    """The masked sums that a process holds until their phase has ended."""

    key: str = ""
    calls: dict[int, MaskedSum] = field(default_factory=dict)

    def begin(self, key: str, call: int, layouts: Mapping[str, Layout]) -> MaskedSum:
        """Start the masked sum of a call, and drop the sums of other phases."""
        if key != self.key:
            self.key, self.calls = key, {}
        self.calls[call] = MaskedSum(layouts)
        return self.calls[call]

    def take(self, call: int, step: str, message: Any) -> Any:
        """Take a step for all clients of a call and return their answer."""
        if step not in get_args(SecureStep) or call not in self.calls:
            raise ContractError(
                f"{step!r} of call {call} is not a step of secure aggregation here."
            )
        return getattr(self.calls[call], step)(message)
