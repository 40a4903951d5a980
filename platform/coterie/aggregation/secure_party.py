"""One client's part in secure aggregation: its keys, its masks and the shares that it holds.

Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning" (CCS 2017),
figure 4, for a server and clients that follow the protocol. A client masks its contribution with a
mask of its own as soon as it has one. The other steps follow when it is known who contributed, and
start again, with fresh keys, if clients are lost on the way.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from coterie.aggregation.masked_messages import (
    SEALED_BYTES,
    PublicKeys,
    are_clients,
    are_keys,
    are_shares,
)
from coterie.aggregation.masks import KeyPair, Vector, add_mask, new_key, seal, unseal
from coterie.aggregation.shamir import SHARE_BYTES, split
from coterie.errors import RunError

FEWEST = 2
"""The fewest clients in a sum."""


def threshold(clients: int) -> int:
    """Return how many clients must give shares to unmask a sum: more than half of them."""
    return max(FEWEST, clients // 2 + 1)


def points(clients: Collection[int]) -> dict[int, int]:
    """Return each client's point for its shares, from 1."""
    return {client: point for point, client in enumerate(sorted(clients), start=1)}


def pair_mask(
    vector: Vector, client: int, peer: int, key: bytes, *, negative: bool = False
) -> None:
    """Add a pair's mask to a client's vector; its peer adds the same mask with opposite sign."""
    add_mask(vector, key, negative=(client > peer) is not negative)


def agree_on_mask(own: KeyPair, public: bytes) -> bytes:
    """Return the key of the mask that two clients share."""
    return own.agree(public, b"mask")


@dataclass
class _Attempt:
    """The secrets of one attempt, which are never used in another."""

    sealing: KeyPair = field(default_factory=lambda: KeyPair(new_key()))
    masking: KeyPair = field(default_factory=lambda: KeyPair(new_key()))
    directory: Mapping[int, PublicKeys] = field(default_factory=dict)
    shares: dict[int, bytes] = field(default_factory=dict)
    graph: frozenset[int] = frozenset()


class Party:
    """A client with a contribution to a masked sum.

    Attributes:
        seed: The key of its own mask.
    """

    def __init__(self, client: int) -> None:
        self.client = client
        self.seed = new_key()
        self._attempt: _Attempt | None = None

    def advertise(self) -> PublicKeys:
        """Begin an attempt with fresh keys, and forget the attempt before."""
        self._attempt = _Attempt()
        return PublicKeys(self._attempt.sealing.public, self._attempt.masking.public)

    def share(self, directory: Mapping[int, PublicKeys]) -> dict[int, bytes]:
        """Split the secrets into shares, one for each client of the directory.

        Returns:
            Recipient to sealed shares; its own share stays here.

        Raises:
            RunError: If the directory is too small or malformed, or lists keys twice or not its
                own.
        """
        attempt = self._now()
        if not are_keys(directory):
            raise self._refusal("the list of keys is malformed")
        own = PublicKeys(attempt.sealing.public, attempt.masking.public)
        keys = {key for each in directory.values() for key in (each.sealing, each.masking)}
        complete = directory.get(self.client) == own and len(keys) == 2 * len(directory)
        if attempt.directory or not complete or len(directory) < FEWEST:
            raise self._refusal("the list of keys has duplicates or lacks its own")
        attempt.directory = directory
        places, needed = points(directory), threshold(len(directory))
        seeds = split(self.seed, places.values(), needed)
        private = split(attempt.masking.private, places.values(), needed)
        both = {client: seeds[place] + private[place] for client, place in places.items()}
        attempt.shares[self.client] = both.pop(self.client)
        return {
            peer: seal(self._sealing_key(attempt, self.client, peer), shares)
            for peer, shares in both.items()
        }

    def mask(self, vector: Vector, inbox: Mapping[int, bytes]) -> None:
        """Add the masks that this client shares with the others, in place.

        Args:
            vector: The sum that its contribution is in, under its own mask.
            inbox: Sender to sealed shares, for all that take part.

        Raises:
            RunError: If too few take part, or shares were changed or are malformed.
        """
        attempt = self._now()
        if not are_shares(inbox, SEALED_BYTES):
            raise self._refusal("its shares are malformed")
        graph = frozenset({self.client, *inbox})
        known = graph <= attempt.directory.keys()
        if attempt.graph or not known or len(graph) < threshold(len(attempt.directory)):
            raise self._refusal(f"{len(graph)} of {len(attempt.directory)} clients are left")
        attempt.graph = graph
        for peer, sealed in inbox.items():
            attempt.shares[peer] = unseal(self._sealing_key(attempt, peer, self.client), sealed)
            key = agree_on_mask(attempt.masking, attempt.directory[peer].masking)
            pair_mask(vector, self.client, peer, key)

    def reveal(self, survivors: frozenset[int]) -> dict[int, bytes]:
        """Give the server one share of each client's secret, and forget everything.

        Args:
            survivors: The clients whose masked contributions the server has.

        Returns:
            Client to a share: of its own mask's key if it is among the survivors, else of its
            private key. Never both, so that no contribution can be read alone.

        Raises:
            RunError: If too few survive, or it is not a set of clients.
        """
        attempt = self._now()
        if not are_clients(survivors):
            raise self._refusal("the list of remaining clients is malformed")
        enough = len(survivors) >= threshold(len(attempt.directory))
        if not (enough and self.client in survivors and survivors <= attempt.graph):
            raise self._refusal(f"{len(survivors)} of {len(attempt.directory)} clients are left")
        self._attempt, self.seed = None, b""
        first, second = slice(SHARE_BYTES), slice(SHARE_BYTES, None)
        return {
            client: attempt.shares[client][first if client in survivors else second]
            for client in attempt.graph
        }

    def renew(self, vector: Vector) -> None:
        """Replace its own mask in the sum by a fresh one."""
        old, self.seed = self.seed, new_key()
        add_mask(vector, self.seed)
        add_mask(vector, old, negative=True)

    def _sealing_key(self, attempt: _Attempt, sender: int, recipient: int) -> bytes:
        peer = sender if recipient == self.client else recipient
        purpose = b"share %d to %d" % (sender, recipient)
        return attempt.sealing.agree(attempt.directory[peer].sealing, purpose)

    def _now(self) -> _Attempt:
        if self._attempt is None:
            raise self._refusal("its keys have been used before")
        return self._attempt

    def _refusal(self, reason: str) -> RunError:
        return RunError(f"Client {self.client} refuses a step of secure aggregation: {reason}.")
