"""All that changes during a run: server state, client states, mail, and the ledger of bytes."""

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from coterie.contract.phase import ServerState
from coterie.execution.events import Handle, TurnDone
from coterie.rounds.server_optimizer import Moments


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """One phase's bytes by key, such as "encoder" or "records/centroids".

    Attributes:
        down: From the server to clients.
        up: From clients to the server.
        peer: From clients to clients.
        items: Rows of what clients sent to clients, such as samples or embeddings.
    """

    down: Mapping[str, int]
    up: Mapping[str, int]
    peer: Mapping[str, int]
    items: Mapping[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes over all keys, by direction."""
        sent = {"down": self.down, "up": self.up, "peer": self.peer}
        return {direction: sum(sizes.values()) for direction, sizes in sent.items()}

    def rows(self) -> dict[str, float]:
        """Flat metrics, such as "bytes/down", "bytes/down/encoder" and "items/peer/samples"."""
        flat: dict[str, float] = {}
        for direction, sizes in (("down", self.down), ("up", self.up), ("peer", self.peer)):
            flat[f"bytes/{direction}"] = sum(sizes.values())
            flat |= {f"bytes/{direction}/{key}": size for key, size in sizes.items()}
        return flat | {f"items/peer/{key}": count for key, count in self.items.items()}


@dataclass
class Ledger:
    """Bytes over the run, and which version of a slot each client has.

    A version that a client has is not sent to it again, and not counted again.

    Attributes:
        versions: Client to slot to the digest it last received.
        down: Bytes from the server to clients.
        up: Bytes from clients to the server, weights and metrics included.
        peer: Bytes from client to client.
        evaluation: Bytes that crossed for evaluation, where data stays with its clients.
        items: Rows from client to client by key, such as samples or embeddings.
    """

    versions: dict[int, dict[str, str]] = field(default_factory=dict)
    down: int = 0
    up: int = 0
    peer: int = 0
    evaluation: int = 0
    items: dict[str, int] = field(default_factory=dict)

    @property
    def totals(self) -> dict[str, int]:
        """Bytes of training over the run, by direction."""
        return {"down": self.down, "up": self.up, "peer": self.peer}

    def offer(self, clients: Iterable[int], slots: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Note that the clients are offered these slots.

        Args:
            clients: Who takes part.
            slots: Slot to its version and bytes.

        Returns:
            Slot to bytes sent, over all clients.
        """
        sent: Counter[str] = Counter()
        for client in clients:
            known = self.versions.setdefault(client, {})
            for slot, (version, size) in slots.items():
                if known.get(slot) != version:
                    known[slot] = version
                    sent[slot] += size
        self.down += sent.total()
        return dict(sorted(sent.items()))

    def collect(self, down: Mapping[str, int], turns: Iterable[TurnDone]) -> Traffic:
        """Note what the clients sent; the whole phase's traffic."""
        up: Counter[str] = Counter()
        peer: Counter[str] = Counter()
        items: Counter[str] = Counter()
        for turn in turns:
            up.update(turn.bytes_up)
            peer.update(turn.bytes_peer)
            items.update(turn.items_peer)
        self.up += up.total()
        self.peer += peer.total()
        self.items = dict(sorted((items + Counter(self.items)).items()))
        return Traffic(
            down=down,
            up=dict(sorted(up.items())),
            peer=dict(sorted(peer.items())),
            items=dict(sorted(items.items())),
        )


@dataclass
class RunState:
    """All that changes during a run; a checkpoint of it is the whole run.

    Attributes:
        server: The method's server state.
        states: Client to what it keeps.
        mail: Recipient to sender to message, until the recipient runs.
        ledger: Bytes, and who has which version of a slot.
        phases: Phases completed.
        failures: What failed so far, as sentences.
        dropped: How many turns were dropped so far.
        optimizer: Slot to the server optimiser's tensors.
        simulated: How many turns were simulated to drop out or to be slow so far.
        best: The best value so far of the metric that `checkpoint.best` names.
    """

    server: ServerState
    states: dict[int, Handle] = field(default_factory=dict)
    mail: dict[int, dict[int, Handle]] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    phases: int = 0
    failures: list[str] = field(default_factory=list)
    dropped: int = 0
    optimizer: Moments = field(default_factory=dict)
    simulated: Counter[str] = field(default_factory=Counter)
    best: float | None = None

    def become(self, other: "RunState") -> None:
        """Take over all of another state."""
        vars(self).update(vars(other))

    def snapshot(self) -> "RunState":
        """The state as it is now, while this one goes on; tensors are shared, never written to."""
        mail = {recipient: dict(letters) for recipient, letters in self.mail.items()}
        return replace(
            self,
            states=dict(self.states),
            mail=mail,
            ledger=deepcopy(self.ledger),
            failures=list(self.failures),
            simulated=self.simulated.copy(),
        )
