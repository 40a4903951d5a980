"""The server's part in secure aggregation: it carries clients' messages and unmasks their sum.

See `execution/secure_party.py` for the clients' part and the paper. The server learns which clients
contributed and the sum of what they sent; all else that it carries is sealed or masked.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from coterie.errors import RunError
from coterie.execution.backend import Backend
from coterie.execution.events import Order
from coterie.execution.exact import Lanes
from coterie.execution.masked_sums import Late, SecureStep, decode, encode
from coterie.execution.masks import KEY_BYTES, KeyPair, Vector, add_mask
from coterie.execution.secure_party import (
    FEWEST,
    PublicKeys,
    agree_on_mask,
    pair_mask,
    points,
    threshold,
)
from coterie.execution.shamir import SHARE_BYTES, combine, factors

_KEYS = 2 * KEY_BYTES


@dataclass(frozen=True, kw_only=True)
class Opened:
    """What an attempt at opening a phase's masked sums gave.

    Attributes:
        lanes: Slot to exact sum; None if the attempt has to be made again.
        lost: The calls whose contributions are lost, and why: "" for a process that is lost.
        up: Client to bytes of keys and shares that it sent.
        down: Client to bytes of keys and shares that it received.
    """

    lanes: Mapping[str, Lanes] | None
    lost: Mapping[int, str]
    up: Mapping[int, int] = field(default_factory=dict)
    down: Mapping[int, int] = field(default_factory=dict)


class _LostError(Exception):
    """A process was lost while its clients can still run again."""


def open_sums(
    backend: Backend, order: Order, calls: Mapping[int, Collection[int]], *, last: bool
) -> Opened:
    """Have clients mask their sums with fresh keys, and unmask the sum over all of them.

    Args:
        backend: Has run the clients.
        order: The phase.
        calls: Call to the clients whose turns in it count.
        last: Whether to go on without clients that are lost before their masked sum has arrived;
            otherwise the attempt ends, and nothing has been unmasked. Clients that are lost after
            it still count.

    Raises:
        RunError: If fewer clients are left than it takes to unmask.
    """
    opening = _Opening(backend, order, {c: frozenset(calls[c]) for c in sorted(calls)}, last=last)
    try:
        return opening.run()
    except _LostError:
        return Opened(lanes=None, lost=opening.lost)


@dataclass
class _Opening:
    backend: Backend
    order: Order
    calls: dict[int, frozenset[int]]
    last: bool
    lost: dict[int, str] = field(default_factory=dict)
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    began: int = 0

    @property
    def clients(self) -> frozenset[int]:
        return frozenset[int]().union(*self.calls.values())

    def run(self) -> Opened:
        self.began = len(self.clients)
        self._require(FEWEST, self.began)
        keys: dict[int, PublicKeys] = _joined(self._ask("advertise", dict.fromkeys(self.calls)))
        sealed = self._share(keys)
        total = self._masked_sum(sealed, threshold(len(keys)))
        self._unmask(total, keys, frozenset(sealed))
        lanes = decode(total, self.order.layouts)
        return Opened(lanes=lanes, lost=self.lost, up=self.up, down=self.down)

    def _share(self, keys: Mapping[int, PublicKeys]) -> dict[int, dict[int, bytes]]:
        """Sender to recipient to sealed shares."""
        needed = threshold(len(keys))
        self._require(needed, len(keys))
        sealed = _joined(self._ask("share", dict.fromkeys(self.calls, keys)))
        self._require(needed, len(sealed))
        for client, shares in sealed.items():
            self.up[client] += _KEYS + sum(map(len, shares.values()))
            self.down[client] += _KEYS * len(keys)
        return sealed

    def _masked_sum(self, sealed: Mapping[int, Mapping[int, bytes]], needed: int) -> Vector:
        inboxes = {
            call: {
                client: {sender: sealed[sender][client] for sender in sealed if sender != client}
                for client in members
            }
            for call, members in self.calls.items()
        }
        vectors = self._ask("mask", inboxes)
        self._require(needed, len(self.clients))
        for client in self.clients:
            self.down[client] += sum(len(sealed[peer][client]) for peer in sealed.keys() - {client})
        total = encode({}, self.order.layouts)
        for vector in vectors.values():
            total += vector
        return total

    def _unmask(self, total: Vector, keys: Mapping[int, PublicKeys], graph: frozenset[int]) -> None:
        """Subtract the survivors' own masks, and those that they have in common with the lost."""
        survivors, needed = self.clients, threshold(len(keys))
        # A process that is lost from here on has its clients in the sum.
        answers = self.backend.exchange("reveal", dict.fromkeys(self.calls, survivors))
        revealed = _joined(_in_time(answers))
        self._require(needed, len(revealed))
        places, speakers = points(keys), sorted(revealed)[:needed]
        weights = factors([places[client] for client in speakers])
        for client in sorted(graph):
            shares = {places[by]: revealed[by][client] for by in speakers}
            secret = combine(shares, weights, KEY_BYTES)
            if client in survivors:
                add_mask(total, secret, negative=True)
                continue
            for peer in sorted(survivors):
                key = agree_on_mask(KeyPair(secret), keys[peer].masking)
                pair_mask(total, peer, client, key, negative=True)
        for client in revealed:
            self.up[client] += SHARE_BYTES * len(graph)

    def _ask(self, step: SecureStep, messages: Mapping[int, Any]) -> dict[int, Any]:
        """The calls' answers; one that is lost now takes its contributions with it."""
        given = self.backend.exchange(step, messages)
        answers = _in_time(given)
        self.lost |= {
            call: found.why if isinstance(found := given.get(call), Late) else ""
            for call in messages
            if call not in answers
        }
        self.calls = {call: self.calls[call] for call in answers}
        if self.lost and not self.last:
            raise _LostError
        return answers

    def _require(self, needed: int, there: int) -> None:
        require(self.order, needed, there, self.began)


def require(order: Order, needed: int, there: int, began: int) -> None:
    """Raise a RunError if fewer clients are there than are needed, of those that began."""
    if there < needed:
        raise RunError(
            f"Round {order.phase.round}: {there} of {began} clients are left, and "
            f"privacy.secure_aggregation takes {needed} to unmask their sum; mend what fails, or "
            "let more clients take part, and go on with resume=true."
        )


def _in_time(answers: Mapping[int, Any]) -> dict[int, Any]:
    return {call: answer for call, answer in answers.items() if not isinstance(answer, Late)}


def _joined(answers: Mapping[int, Mapping[int, Any]]) -> dict[int, Any]:
    """Client to answer, over all calls."""
    return {client: answer for each in answers.values() for client, answer in each.items()}
