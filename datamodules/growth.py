"""Limits on how far compressed data may grow: a small untrusted file must not fill the memory."""

_FREE = 1 << 28
_FACTOR = 100


def most_from(packed: int) -> int:
    """Return the bytes that `packed` compressed bytes may become: 256 MiB, or a hundredfold."""
    return max(_FREE, _FACTOR * packed)


def check_growth(packed: int, whole: int) -> None:
    """Refuse data that grows too much."""
    if whole > most_from(packed):
        raise ValueError(f"{packed} compressed bytes grow to {whole} or more")
