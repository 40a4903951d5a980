"""The messages of secure aggregation, and the checks that their receivers make first."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.aggregation.masks import KEY_BYTES, TAG_BYTES, is_public_key
from coterie.aggregation.shamir import SHARE_BYTES

SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""Bytes of the two sealed shares that one client holds of another's secrets."""


@dataclass(frozen=True)
class PublicKeys:
    """A client's two public keys: one to seal shares for it, one to agree on masks with others."""

    sealing: bytes
    masking: bytes


def are_keys(message: Any, clients: Collection[int] | None = None) -> bool:
    """Return whether the message has public keys for each of these clients, or for any if None."""
    return _is_by_client(message, clients) and all(
        isinstance(keys, PublicKeys)
        and _is_bytes(keys.sealing, KEY_BYTES)
        and _is_bytes(keys.masking, KEY_BYTES)
        for keys in message.values()
    )


def are_usable_keys(message: Any, clients: Collection[int]) -> bool:
    """Return whether the message has public keys of all clients, distinct and usable.

    No two are alike: the other clients would refuse a list with such keys.
    """
    if not are_keys(message, clients):
        return False
    every = [key for keys in message.values() for key in (keys.sealing, keys.masking)]
    return len(set(every)) == len(every) and all(map(is_public_key, every))


def are_shares(message: Any, size: int, clients: Collection[int] | None = None) -> bool:
    """Return whether the message has shares of `size` bytes for these clients, or any if None."""
    return _is_by_client(message, clients) and all(
        _is_bytes(share, size) for share in message.values()
    )


def are_clients(message: Any) -> bool:
    """Return whether the message is a set of clients."""
    return isinstance(message, frozenset) and all(type(client) is int for client in message)


def is_vector(message: Any, elements: int) -> bool:
    """Return whether the message is a vector of this many masked integers."""
    array = isinstance(message, np.ndarray)
    return array and message.dtype == np.uint64 and message.shape == (elements,)


def _is_by_client(message: Any, clients: Collection[int] | None) -> bool:
    if not isinstance(message, Mapping) or not all(type(client) is int for client in message):
        return False
    return clients is None or message.keys() == set(clients)


def _is_bytes(value: Any, size: int) -> bool:
    return isinstance(value, bytes) and len(value) == size
