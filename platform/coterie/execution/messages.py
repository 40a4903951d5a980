"""Checks and measures every message: declared keys, known shapes, finite values, bytes."""

import math
from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from coterie.contract.phase import Mean, Outcome, Phase, ServerState, Slots, Tensors
from coterie.errors import ContractError
from coterie.execution.exact import Layout

WEIGHT_BYTES = 8
"""Each contribution carries its weight, one int64."""


def check_offer(phase: Phase, slots: Slots, server: ServerState) -> None:
    """Raise a ContractError unless the server offers exactly the slots that the phase declares.

    Slots that may come back must be in the server's state too, which gives their shapes.
    """
    if extra := set(slots) - phase.down:
        raise ContractError(_undeclared("offers slot", extra, "down", phase))
    if missing := phase.down - set(slots):
        raise ContractError(
            f"Phase {phase.name!r} declares slot {sorted(missing)[0]!r} in Phase.down but does not "
            "offer it; return it from offer."
        )
    if unknown := phase.up - set(server.slots):
        raise ContractError(
            f"Phase {phase.name!r} averages slot {sorted(unknown)[0]!r}, which the server's state "
            "lacks; give it a value in init."
        )


def check_outcome(
    phase: Phase, outcome: Outcome, layouts: Mapping[str, Layout], clients: Collection[int] | None
) -> None:
    """Check an outcome against the phase, before anything of it is sent.

    Args:
        phase: The declaration.
        outcome: The result of a client's turn.
        layouts: Slot to the layout that contributions must have.
        clients: All clients, or None if they are not known here.

    Raises:
        ContractError: Naming the first undeclared key, wrong shape or value that is not finite.
    """
    mail_keys = {key for message in outcome.mail.values() for key in message}
    sent = (
        ("up", "sends up slot", set(outcome.up), phase.up),
        ("records", "sends record", set(outcome.records), phase.records),
        ("mail", "mails", mail_keys, phase.mail),
        ("metrics", "reports metric", set(outcome.metrics), phase.metrics),
    )
    for declared_as, verb, keys, declared in sent:
        if extra := keys - declared:
            raise ContractError(_undeclared(verb, extra, declared_as, phase))
    for slot, contribution in outcome.up.items():
        _check_contribution(slot, contribution, layouts[slot])
    _check_finite("record", outcome.records)
    for recipient, message in outcome.mail.items():
        if clients is not None and recipient not in clients:
            raise ContractError(f"Mail goes to client {recipient}, which does not exist.")
        _check_finite(f"mail to client {recipient}", message)


def bytes_up(outcome: Outcome) -> dict[str, int]:
    """Bytes sent to the server, by slot or "records/<key>", with weights and metrics."""
    sizes = {
        slot: size_of(mean.tensors) + WEIGHT_BYTES for slot, mean in sorted(outcome.up.items())
    }
    sizes |= {f"records/{key}": value.nbytes for key, value in sorted(outcome.records.items())}
    if outcome.metrics:
        sizes["metrics"] = 8 * len(outcome.metrics)
    return sizes


def bytes_peer(outcome: Outcome) -> dict[str, int]:
    """Bytes sent to other clients, by key, over all recipients."""
    sizes: dict[str, int] = {}
    for message in outcome.mail.values():
        for key, value in message.items():
            sizes[key] = sizes.get(key, 0) + value.nbytes
    return sizes


def items_peer(outcome: Outcome) -> dict[str, int]:
    """Rows (samples, embeddings) sent to other clients, by key, over all recipients.

    A tensor without dimensions counts as one.
    """
    counts: dict[str, int] = {}
    for message in outcome.mail.values():
        for key, value in message.items():
            counts[key] = counts.get(key, 0) + (len(value) if value.ndim else 1)
    return counts


def size_of(tensors: Tensors) -> int:
    """Bytes of named tensors."""
    return sum(value.nbytes for value in tensors.values())


def _check_contribution(slot: str, contribution: Mean, layout: Layout) -> None:
    given = {name: tuple(value.shape) for name, value in contribution.tensors.items()}
    wanted = dict(zip(layout.names, layout.shapes, strict=True))
    if given != wanted:
        wrong = sorted(name for name in given | wanted if given.get(name) != wanted.get(name))[0]
        shapes = f"{given.get(wrong)} for {wanted.get(wrong)}"
        raise ContractError(
            f"Slot {slot!r}: {wrong!r} has shape {shapes}; send the server's shapes."
        )
    _check_finite(f"slot {slot!r}", contribution.tensors)


def _check_finite(what: str, tensors: Mapping[str, Tensor]) -> None:
    for name, value in tensors.items():
        if value.is_floating_point() and value.numel() and not _is_finite(value):
            raise ContractError(
                f"{what}: {name!r} is not finite; lower the learning rate or drop the client."
            )


def _is_finite(value: Tensor) -> bool:
    # One pass and no mask in memory; both bounds of a tensor with a NaN are NaN.
    return all(math.isfinite(bound.item()) for bound in torch.aminmax(value.detach()))


def _undeclared(verb: str, keys: set[str], declared_as: str, phase: Phase) -> str:
    key = sorted(keys)[0]
    return f"Phase {phase.name!r} {verb} {key!r} undeclared; add it to Phase.{declared_as}."
