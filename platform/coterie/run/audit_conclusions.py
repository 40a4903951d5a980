"""What a reader may conclude from an audit, in three sentences."""

from collections.abc import Mapping, Sequence
from typing import Any

from coterie.config.privacy import PrivacyConfig
from coterie.errors import listed
from coterie.evaluation.membership import Membership
from coterie.run.audit_messages import AuditedKey
from coterie.tracking.formatting import format_bytes
from coterie.tracking.report_words import noise_in_words, own_noise_in_words

_NUMBERS = frozenset({"slot", "gathered", "peer_message", "metric"})
"""Types of messages that hold numbers of clients' data."""


def conclusions(
    keys: Sequence[AuditedKey],
    attacks: Mapping[str, Membership],
    privacy: PrivacyConfig,
    spent: Mapping[str, Any],
    own_noise: float | None = None,
) -> list[str]:
    """Say what was sent, what the attacks found, and what bounds everything else.

    Args:
        keys: What left the clients.
        attacks: Attack to its result; those on an untrained network are left out.
        privacy: The run's protection.
        spent: The ε, δ and unit of its summary; {} without noise.
        own_noise: The ε of noise that clients added themselves; None without.
    """
    hidden = _hidden(keys) if privacy.secure_aggregation else ""
    return [_sent(keys), _found(attacks), _bounded(privacy, spent, own_noise, hidden)]


def _sent(keys: Sequence[AuditedKey]) -> str:
    size = format_bytes(sum(key.bytes for key in keys))
    told = f"Clients sent {size} of numbers"
    known = [key for key in keys if key.samples is not None]
    if not known:
        return f"{told}, which do not say from how many samples each is computed."
    least = min(known, key=lambda key: key.samples or 0)
    if least.samples == 1 and not least.summed:
        return (
            f"Single samples, or numbers of one sample each, left the clients ({least.key}): "
            "whoever reads them may recognise a sample."
        )
    many = f"{least.samples:,} sample" + "s" * (least.samples != 1)
    if least.summed:
        return f"{told}, of which the server reads sums over {least.summed:,} clients or more."
    return f"{told}, and each of them is computed from {many} or more ({least.key})."


def _found(attacks: Mapping[str, Membership]) -> str:
    own = {name: found for name, found in attacks.items() if not name.endswith("untrained")}
    if not own:
        return "Whether the model tells its training samples from others was not tried."
    name, worst = max(own.items(), key=lambda item: item[1].auc)
    low, high = worst.auc_interval
    if low > 0.5:
        return (
            f"The model tells its training samples from others better than chance: {name} is right "
            f"in {worst.auc:.0%} of pairs ({low:.0%} to {high:.0%}; guessing: 50 %)."
        )
    return (
        f"The attacks did not tell training samples from others: the best, {name}, is right in "
        f"{worst.auc:.0%} of pairs ({low:.0%} to {high:.0%}; guessing: 50 %)."
    )


def _hidden(keys: Sequence[AuditedKey]) -> str:
    """Return what masks hid, as a clause."""
    left = [key.key for key in keys if key.type in _NUMBERS and not key.summed]
    but = f", but not {listed(left)}" if left else ""
    return f"masks hid from the server what each client sent{but}"


def _bounded(
    privacy: PrivacyConfig, spent: Mapping[str, Any], own_noise: float | None, masks: str
) -> str:
    if privacy.dp.clip is not None:
        noise = noise_in_words(spent) if spent else "Noise was on, and no summary.json says its ε."
        told = masks or "no masks were on, so the server could look into what each client sent"
        return f"{noise} {told[0].upper()}{told[1:]}."
    if own_noise is not None:
        return own_noise_in_words(own_noise)
    if masks:
        return (
            f"No noise was added, so a stronger attack on the model is not ruled out; {masks}, "
            "which protects the messages and not the model."
        )
    return (
        "No noise was added and no masks were on, so neither a stronger attack on the model nor a "
        "server that looks into messages is ruled out; see privacy.dp and "
        "privacy.secure_aggregation."
    )
