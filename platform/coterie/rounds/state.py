"""All that changes during a run: server state, client states, peer messages, bytes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from coterie.contract.phase import ServerState, Tensors
from coterie.execution.events import ClientResult, Handle
from coterie.rounds.accounts import ClientAccount, changed_accounts
from coterie.rounds.gather import PhaseResult


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One phase's bytes by key, such as "encoder" or "gathered/centroids".

    Attributes:
        down: Bytes from the server to clients.
        up: Bytes from clients to the server.
        peer: Bytes from clients to clients.
        items: Rows (samples, embeddings) from clients to clients.
    """

    down: Mapping[str, int]
    up: Mapping[str, int]
    peer: Mapping[str, int]
    items: Mapping[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Each direction's bytes over all keys."""
        sent = {"down": self.down, "up": self.up, "peer": self.peer}
        return {direction: sum(sizes.values()) for direction, sizes in sent.items()}

    def rows(self) -> dict[str, float]:
        """Return metrics such as "bytes/down", "bytes/down/encoder" and "items/peer/samples"."""
        flat: dict[str, float] = {}
        for direction, sizes in (("down", self.down), ("up", self.up), ("peer", self.peer)):
            flat[f"bytes/{direction}"] = sum(sizes.values())
            flat |= {f"bytes/{direction}/{key}": size for key, size in sizes.items()}
        return flat | {f"items/peer/{key}": count for key, count in self.items.items()}


@dataclass
class Ledger:
    """Bytes over the run, and each client's version of each slot.

    A version that a client already has is neither sent nor counted again.

    Attributes:
        versions: Client to slot to the digest that it received last.
        received: Client to bytes from the server.
        down: Bytes from the server to clients.
        up: Bytes from clients to the server, weights and metrics included.
        peer: Bytes from clients to clients.
        evaluation: Bytes sent for evaluation, where data is node-local.
        items: Key to rows (samples, embeddings) from clients to clients.
    """

    versions: dict[int, dict[str, str]] = field(default_factory=dict)
    received: dict[int, int] = field(default_factory=dict)
    down: int = 0
    up: int = 0
    peer: int = 0
    evaluation: int = 0
    items: dict[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Each direction's training bytes over the run."""
        return {"down": self.down, "up": self.up, "peer": self.peer}

    def snapshot(self) -> "Ledger":
        """Return a copy that later phases do not change."""
        return replace(
            self, versions=dict(self.versions), received=dict(self.received), items=dict(self.items)
        )

    def offer(self, clients: Iterable[int], slots: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Count the slots that are sent to clients.

        Args:
            clients: The clients that take part.
            slots: Slot to its version and bytes.

        Returns:
            Slot to bytes sent, over all clients.
        """
        sent: Counter[str] = Counter()
        for client in clients:
            known = self.versions.get(client, {})
            new = {slot: v for slot, (v, _) in slots.items() if known.get(slot) != v}
            self.versions[client] = {**known, **new}  # a new one, as snapshots share the former
            for slot in new:
                sent[slot] += slots[slot][1]
                self.received[client] = self.received.get(client, 0) + slots[slot][1]
        self.down += sent.total()
        return dict(sorted(sent.items()))

    def collect(self, down: Mapping[str, int], results: Iterable[ClientResult]) -> Traffic:
        """Count what clients sent, and received besides slots; return the whole phase's traffic."""
        received = Counter(down)
        up: Counter[str] = Counter()
        peer: Counter[str] = Counter()
        items: Counter[str] = Counter()
        for done in results:
            received.update(done.bytes_down)
            beside = sum(done.bytes_down.values())
            self.received[done.client] = self.received.get(done.client, 0) + beside
            self.down += beside
            up.update(done.bytes_up)
            peer.update(done.bytes_peer)
            items.update(done.items_peer)
        self.up += up.total()
        self.peer += peer.total()
        self.items = dict(sorted((items + Counter(self.items)).items()))
        return Traffic(
            down=dict(sorted(received.items())),
            up=dict(sorted(up.items())),
            peer=dict(sorted(peer.items())),
            items=dict(sorted(items.items())),
        )


@dataclass
class RunState:
    """Everything that changes during a run; a checkpoint of it is the whole run.

    Attributes:
        states: Client to what it keeps between tasks.
        peer_messages: Recipient to sender to message, until the recipient's next task.
        ledger: Bytes, and each client's version of each slot.
        failures: All failures, one sentence each.
        stages: Stage and slot, as "optimizer/encoder", to what a stage of the aggregation keeps.
        simulated: Number of simulated dropouts and stragglers.
        best: The best value of the metric that `checkpoint.best` names.
        stopped: The method's rounds, if a callback ended the run before them.
        accounts: Client to what it has done so far.
        counts: Stage of the aggregation to the number that it checks a resumed run with.
    """

    server: ServerState
    states: dict[int, Handle] = field(default_factory=dict)
    peer_messages: dict[int, dict[int, Handle]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    phases: int = 0
    failures: list[str] = field(default_factory=list)
    dropped: int = 0
    stages: dict[str, Tensors] = field(default_factory=dict)
    simulated: Counter[str] = field(default_factory=Counter)
    best: float | None = None
    stopped: int | None = None
    accounts: dict[int, ClientAccount] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def keep(self, result: PhaseResult, simulated: Mapping[str, int]) -> None:
        """Store what a phase leaves beside the server's state: states, messages, counts."""
        for client, kept in result.states.items():
            self.peer_messages.pop(client, None)
            if kept is None:
                self.states.pop(client, None)
            else:
                self.states[client] = kept
        for done in result.client_results:
            for recipient, message in done.peer_messages.items():
                self.peer_messages.setdefault(recipient, {})[done.client] = message
        self.accounts |= changed_accounts(self.accounts, result)
        self.phases += 1
        self.failures += [str(failure) for failure in result.failures]
        self.dropped += len(result.dropped)
        self.simulated.update({k: v for k, v in simulated.items() if k != "absent"})

    def become(self, other: "RunState") -> None:
        """Replace all values by another state's."""
        vars(self).update(vars(other))

    def snapshot(self) -> "RunState":
        """Return a copy that later phases do not change.

        Tensors are shared, as they are never changed.
        """
        peer_messages = {
            recipient: dict(messages) for recipient, messages in self.peer_messages.items()
        }
        return replace(
            self,
            states=dict(self.states),
            peer_messages=peer_messages,
            ledger=self.ledger.snapshot(),
            accounts=dict(self.accounts),
            failures=list(self.failures),
            simulated=self.simulated.copy(),
        )
