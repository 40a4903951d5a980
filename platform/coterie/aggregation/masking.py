"""Secure aggregation as a stage: clients mask what they send, and the server unmasks its sum.

See `secure_party` for the clients' part and the paper. The server learns which clients contributed
and the sum of what they sent; all else that it carries is sealed or masked. The protocol starts
when all tasks are done, among the clients that have contributed.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

from coterie.aggregation.audit import smallest_groups
from coterie.aggregation.exact import FixedPointSum, Layout
from coterie.aggregation.masked_messages import (
    SEALED_BYTES,
    PublicKeys,
    are_shares,
    are_usable_keys,
    is_vector,
)
from coterie.aggregation.masked_sums import (
    MaskedSum,
    MaskedSums,
    SecureStep,
    decode,
    encode,
    masked_bytes,
)
from coterie.aggregation.masks import KEY_BYTES, KeyPair, Vector, add_mask
from coterie.aggregation.secure_party import (
    FEWEST,
    agree_on_mask,
    pair_mask,
    points,
    threshold,
)
from coterie.aggregation.shamir import SHARE_BYTES, combine, factors
from coterie.aggregation.stage import (
    Contribution,
    Gathering,
    Late,
    PhaseRun,
    Sent,
    Stage,
    StageTask,
    Start,
    besides_sums,
    require_sum,
)
from coterie.contract.method import Method
from coterie.contract.phase import Phase, WeightedUpdate, summed
from coterie.errors import ConfigError, ContractError, RunError

KEYS = "secure_aggregation"
"""The key of public keys and shares in the counts of bytes."""
_KEYS = 2 * KEY_BYTES
_LOST = "its process was lost with its masked sum"
_MALFORMED = "its answer to the step {} of secure aggregation was not valid"
_ATTEMPTS = 3
"""Attempts to open masked sums; the last one continues without lost clients."""

Exchange = Callable[[SecureStep, Mapping[int, Any]], dict[int, Any]]
"""Has the calls' clients take a step, and returns the answers of those that are not lost."""


class Masking(Stage):
    """Stage that masks contributions in the clients' processes, and unmasks only their sum.

    Args:
        method: Says which sums are over groups of samples, for the audit.
        weights: Gives each client's largest weight in a phase; None if a stage may change weights.

    Attributes:
        held: In a client's process, the masked sums with the clients' secrets.
    """

    name: ClassVar[str] = "masking"

    def __init__(
        self, method: Method, weights: Callable[[PhaseRun], Mapping[int, int]] | None = None
    ) -> None:
        self._method, self._weights = method, weights
        self.held = MaskedSums()

    def check(self, start: Start) -> None:
        """Refuse rules, gathered tensors and cohorts that cannot be masked."""
        rule = start.config.aggregation.rule
        if rule not in ("weighted", "equal"):
            raise ConfigError(
                f"aggregation.rule={rule}: it needs each client's update, and "
                "privacy.secure_aggregation=true shows their sum only; leave one of the two out."
            )
        for phase in start.phases():
            check_sums_only(phase)
            there = start.cohort(phase)
            if phase.up and 0 < there < FEWEST:
                raise ConfigError(
                    f"privacy.secure_aggregation=true: {there} client takes part in round "
                    f"{phase.round}, but a sum hides a client only among {FEWEST} or more; let "
                    "more clients take part."
                )

    def request(self, run: PhaseRun) -> bool | None:
        """Return whether the phase's sums are masked.

        Raises:
            ConfigError: If clients send anything but sums.
            RunError: If a client would be alone in the sum.
        """
        check_sums_only(run.phase)
        if not run.layouts:
            return None
        if run.sizes:
            _require(run.phase, FEWEST, len(run.sizes), len(run.sizes))
        return True

    def contribute(self, sent: Contribution, task: StageTask) -> Contribution:
        """Count the bytes that a contribution has under masks, and require a value in every slot.

        A slot that one client alone sends would be read as its own, so each client sends them all.
        """
        if not task.phase_data:
            return sent
        require_sum(sent, "privacy.secure_aggregation")
        if missing := sorted(task.layouts.keys() - sent.up.keys()):
            raise ContractError(
                f"Slot {missing[0]!r} is not sent: under privacy.secure_aggregation=true each "
                "client sends all slots of a phase, so that no sum is of one client alone."
            )
        masked = {slot: masked_bytes(layout) for slot, layout in task.layouts.items()}
        smallest = {key: n for key, n in sent.smallest.items() if key not in task.layouts}
        return replace(sent, bytes_up={**sent.bytes_up, **masked}, smallest=smallest)

    def hides(self, task: StageTask) -> bool:
        """Return True: a traceback could show what the mask hides."""
        return bool(task.phase_data)

    def sums(
        self, key: str, call: int, layouts: Mapping[str, Layout], data: Any
    ) -> MaskedSum | None:
        """Return the sum under masks, which stays in the process with its clients' secrets."""
        return self.held.begin(key, call, layouts) if data else None

    def answer(self, call: int, question: str, message: Any) -> Any:
        """Take a step for the clients of a call."""
        return self.held.take(call, question, message)

    def collect(self, run: PhaseRun, gathering: Gathering) -> None:
        """Open the masked sums; clients whose process is lost run again first.

        A client that has a process to itself and takes too long has failed, and the policy decides.
        """
        if not run.data.get(self.name) or not gathering.calls:
            return
        exchange = partial(gathering.exchange, self.name)
        retried: set[int] = set()
        for attempt in range(1, _ATTEMPTS + 1):
            opened = open_sums(exchange, run, gathering.calls, last=attempt == _ATTEMPTS)
            lost = gathering.lose(opened.lost, _LOST)
            if opened.sums is not None:
                self._check_weights(run, opened.sums, gathering)
                gathering.sums.merge(opened.sums)
                gathering.count(KEYS, opened.up, opened.down)
                return
            late = {client: why for client, why in lost.items() if why != _LOST}
            again = set(late) - retried if gathering.retries else set[int]()
            for client in sorted(again):
                gathering.note(client, late[client], "retried")
            retried |= again
            if gone := lost.keys() - late.keys():
                gathering.note(None, _LOST, "replaced, its clients run again")
            gathering.run_again(again | gone)

    def _check_weights(
        self, run: PhaseRun, sums: Mapping[str, FixedPointSum], gathering: Gathering
    ) -> None:
        """Refuse sums of more weight than all clients may send; masks hide who sent too much."""
        if self._weights is None:
            return
        largest = self._weights(run)
        clients = frozenset[int]().union(*gathering.calls.values())
        most = sum(largest[client] for client in clients)
        for slot, found in sums.items():
            if found.weight > most:
                raise RunError(
                    f"The masked sum of {slot!r} has weight {found.weight}, but the samples of "
                    f"its {len(clients)} clients allow at most {most}: a client has sent too "
                    "large a weight; to see which, run with privacy.secure_aggregation=false."
                )

    def audit(
        self, rows: Sequence[Sent], run: PhaseRun, means: Mapping[str, WeightedUpdate]
    ) -> Sequence[Sent]:
        """Say that the server has read only the sum over the clients."""
        if not run.data.get(self.name):
            return rows
        groups = smallest_groups(self._method, {s: summed(mean) for s, mean in means.items()})
        return [self._audited(row, groups) for row in rows]

    def _audited(self, row: Sent, groups: Mapping[str, int]) -> Sent:
        if row.type == "keys":
            return replace(row, spec="public keys, sealed shares")
        if row.type != "slot":
            return row
        known = groups.get(row.key, row.total) or None
        samples = None if row.samples is None else known  # other stages may hide it
        return replace(row, samples=samples, summed=row.clients)


def check_sums_only(phase: Phase) -> None:
    """Raise a ConfigError if clients send anything but sums, to the server or to each other."""
    if told := besides_sums(phase):
        raise ConfigError(
            f"privacy.secure_aggregation=true: {told}, which is not a sum; leave it out, or choose "
            "a method whose clients send sums only, such as fedavg or concord."
        )


_Proper = Callable[[Any, Collection[int]], bool]
"""Tells whether an answer is valid for a call with these clients."""


class _LostError(Exception):
    """A process was lost, and its clients can still run again."""


def open_sums(
    exchange: Exchange, run: PhaseRun, calls: Mapping[int, Collection[int]], *, last: bool
) -> "Opening":
    """Have clients mask their sums with fresh keys, and unmask the sum over all of them.

    Args:
        exchange: Has clients take a step of the protocol.
        run: The phase.
        calls: Call to the clients whose tasks in it count.
        last: Whether to go on without clients that are lost before their masked sum has arrived;
            if not, the attempt ends, and nothing has been unmasked. Clients that are lost after
            it still count.

    Raises:
        RunError: If fewer clients are left than it takes to unmask.
    """
    opening = Opening(exchange, run, {c: frozenset(calls[c]) for c in sorted(calls)}, last=last)
    with suppress(_LostError):
        opening.open()
    return opening


@dataclass
class Opening:
    """One attempt to open a phase's masked sums.

    Attributes:
        exchange: Has clients take a step of the protocol.
        run: The phase.
        calls: The calls that are left, and their clients.
        last: Whether to go on without lost clients.
        sums: Slot to exact sum; None if the attempt has to be made again.
        lost: The calls whose contributions are lost, and why: "" for a process that is lost.
        up: Client to bytes of keys and shares that it sent.
        down: Client to bytes of keys and shares that it received.
        began: Clients at the start.
    """

    exchange: Exchange
    run: PhaseRun
    calls: dict[int, frozenset[int]]
    last: bool
    sums: Mapping[str, FixedPointSum] | None = None
    lost: dict[int, str] = field(default_factory=dict)
    up: Counter[int] = field(default_factory=Counter)
    down: Counter[int] = field(default_factory=Counter)
    began: int = 0

    @property
    def clients(self) -> frozenset[int]:
        """The clients of all calls that are left."""
        return frozenset[int]().union(*self.calls.values())

    def open(self) -> None:
        """Take all steps of the protocol, and store the sums."""
        self.began = len(self.clients)
        self._require(FEWEST, self.began)
        keys: dict[int, PublicKeys] = _joined(
            self._ask("advertise", dict.fromkeys(self.calls), are_usable_keys)
        )
        sealed = self._share(keys)
        total = self._masked_sum(sealed, threshold(len(keys)))
        self._unmask(total, keys, frozenset(sealed))
        self.sums = decode(total, self.run.layouts)

    def _share(self, keys: Mapping[int, PublicKeys]) -> dict[int, dict[int, bytes]]:
        """Return the sealed shares, by sender and recipient."""
        needed = threshold(len(keys))
        self._require(needed, len(keys))
        proper = _of_each(lambda by, found: are_shares(found, SEALED_BYTES, keys.keys() - {by}))
        sealed = _joined(self._ask("share", dict.fromkeys(self.calls, keys), proper))
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
        total = encode({}, self.run.layouts)
        vectors = self._ask("mask", inboxes, lambda found, _: is_vector(found, len(total)))
        self._require(needed, len(self.clients))
        for client in self.clients:
            self.down[client] += sum(len(sealed[peer][client]) for peer in sealed.keys() - {client})
        for vector in vectors.values():
            total += vector
        return total

    def _unmask(self, total: Vector, keys: Mapping[int, PublicKeys], graph: frozenset[int]) -> None:
        """Subtract the survivors' own masks, and the masks that they share with lost clients."""
        survivors, needed = self.clients, threshold(len(keys))
        # From here on the sum has the clients of a process even if it is lost, or lies.
        answers = self.exchange("reveal", dict.fromkeys(self.calls, survivors))
        proper = _of_each(lambda by, found: are_shares(found, SHARE_BYTES, graph))
        revealed = _joined({c: each for c, each in answers.items() if proper(each, self.calls[c])})
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

    def _ask(
        self, step: SecureStep, messages: Mapping[int, Any], proper: _Proper
    ) -> dict[int, Any]:
        """Return the calls' valid answers.

        One that is lost now takes its contributions with it.
        """
        given = self.exchange(step, messages)
        answers = {
            c: each for c, each in given.items() if c in messages and proper(each, self.calls[c])
        }
        for call in messages:
            if call not in answers:
                self.lost[call] = _why(given[call], step) if call in given else ""
        self.calls = {call: self.calls[call] for call in answers}
        if self.lost and not self.last:
            raise _LostError
        return answers

    def _require(self, needed: int, there: int) -> None:
        _require(self.run.phase, needed, there, self.began)


def _require(phase: Phase, needed: int, there: int, began: int) -> None:
    """Raise a RunError if fewer clients are left than are needed to unmask their sum."""
    if there < needed:
        raise RunError(
            f"Round {phase.round}: {there} of {began} clients are left, and "
            f"privacy.secure_aggregation needs {needed} to unmask their sum; correct what fails, "
            "or let more clients take part, and go on with resume=true."
        )


def _of_each(proper: Callable[[int, Any], bool]) -> _Proper:
    """Return a check that an answer has a valid part for each client."""
    return lambda answer, clients: (
        isinstance(answer, Mapping)
        and answer.keys() == set(clients)
        and all(proper(client, part) for client, part in answer.items())
    )


def _why(answer: Any, step: SecureStep) -> str:
    return answer.why if isinstance(answer, Late) else _MALFORMED.format(step)


def _joined(answers: Mapping[int, Mapping[int, Any]]) -> dict[int, Any]:
    """Return the clients' answers over all calls."""
    return {client: answer for each in answers.values() for client, answer in each.items()}
