"""Which keys and how many bytes crossed between server, clients and peers."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from coterie.engine.events import TurnDone


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
