"""Masks and their keys, from the operating system's randomness and never from a seed.

A mask is the key stream of AES-256 in counter mode, added to 64-bit integers modulo 2⁶⁴. A key
makes one mask only, so the counter starts at 0.
"""

import secrets
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from coterie.errors import RunError

KEY_BYTES = 32
TAG_BYTES = 16
"""Bytes by which a sealed text is longer than the text."""
Vector = NDArray[np.uint64]
"""Integers in two's complement (elements,); sums wrap around modulo 2⁶⁴."""

_BLOCK = 2**16  # elements per step, so that the stream stays in the cache
_ZEROS = bytes(8 * _BLOCK)
_AES_BLOCK = 16


def new_key() -> bytes:
    """Return fresh secret bytes of the operating system."""
    return secrets.token_bytes(KEY_BYTES)


@dataclass(frozen=True)
class KeyPair:
    """An X25519 key pair."""

    private: bytes

    @property
    def public(self) -> bytes:
        """The public key, 32 bytes."""
        return X25519PrivateKey.from_private_bytes(self.private).public_key().public_bytes_raw()

    def agree(self, public: bytes, purpose: bytes) -> bytes:
        """Return the key that this pair shares with another's public half, for one purpose."""
        private = X25519PrivateKey.from_private_bytes(self.private)
        try:
            secret = private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError as error:  # a point of low order
            raise RunError("A client's public key is not an X25519 key.") from error
        return HKDF(SHA256(), KEY_BYTES, salt=None, info=b"coterie " + purpose).derive(secret)


def is_public_key(key: bytes) -> bool:
    """Return whether a public key is usable: 32 bytes, and not a point of low order."""
    try:
        KeyPair(bytes(KEY_BYTES)).agree(key, b"")
    except RunError:
        return False
    return True


def add_mask(vector: Vector, key: bytes, *, negative: bool = False) -> None:
    """Add a key's mask to a vector in place, or subtract it."""
    stream = Cipher(algorithms.AES(key), modes.CTR(bytes(_AES_BLOCK))).encryptor()
    buffer = bytearray(len(_ZEROS) + _AES_BLOCK - 1)
    change = np.subtract if negative else np.add
    for start in range(0, len(vector), _BLOCK):
        block = vector[start : start + _BLOCK]
        stream.update_into(memoryview(_ZEROS)[: block.nbytes], buffer)
        change(block, np.frombuffer(buffer, "<u8", len(block)), out=block)


def seal(key: bytes, text: bytes) -> bytes:
    """Encrypt and authenticate a text; use each key for one text only."""
    return AESGCM(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Decrypt a sealed text.

    Raises:
        RunError: If it was changed on its way.
    """
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except InvalidTag as error:
        raise RunError("A share was changed on its way between clients.") from error
