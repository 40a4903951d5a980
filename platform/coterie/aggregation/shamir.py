"""Shamir's secret sharing: `threshold` shares give the secret, fewer reveal nothing about it.

Shamir, "How to Share a Secret" (CACM 1979). The field is that of the Mersenne prime 2⁵²¹ − 1, which
holds secrets of up to 65 bytes. Coefficients come from the operating system.
"""

import secrets
from collections.abc import Collection, Mapping

from coterie.errors import RunError

SHARE_BYTES = 66
_PRIME = 2**521 - 1


def split(secret: bytes, points: Collection[int], threshold: int) -> dict[int, bytes]:
    """Split a secret into one share for each point.

    Args:
        secret: At most 65 bytes.
        points: Different positive integers.
        threshold: Shares that give the secret, at least 1.

    Returns:
        Point to share.
    """
    polynomial = [secrets.randbelow(_PRIME) for _ in range(threshold - 1)]
    polynomial.append(int.from_bytes(secret, "big"))
    return {point: _value(polynomial, point).to_bytes(SHARE_BYTES, "big") for point in points}


def factors(points: Collection[int]) -> dict[int, int]:
    """Return the factor of each share when a secret is combined: Lagrange's polynomials at 0."""
    found = {}
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above = above * other % _PRIME
                below = below * (other - point) % _PRIME
        found[point] = above * pow(below, -1, _PRIME) % _PRIME
    return found


def combine(shares: Mapping[int, bytes], weights: Mapping[int, int], size: int) -> bytes:
    """Return the secret of `size` bytes from its shares.

    Args:
        shares: Point to share, exactly `threshold` of them or more.
        weights: The `factors` of these points.
        size: Bytes of the secret.

    Raises:
        RunError: If the shares are too few or not of one secret; not every such case is seen.
    """
    total = sum(int.from_bytes(shares[point], "big") * weights[point] for point in weights)
    try:
        return (total % _PRIME).to_bytes(size, "big")
    except OverflowError as error:
        raise RunError("Shares do not give a secret: they are too few, or one is wrong.") from error


def _value(polynomial: list[int], point: int) -> int:
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % _PRIME
    return value
