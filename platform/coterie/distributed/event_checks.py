"""Checks an actor's events on arrival: they may concern only its own call and clients."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from coterie.aggregation.exact import FixedPointSum, Layout
from coterie.execution.events import CallDone, ClientFailed, ClientResult, ClientStarted, Event
from coterie.execution.packing import Packed, unpack

_COUNTS = ("bytes_up", "bytes_peer", "items_peer", "bytes_down", "smallest")


class StrangeEventError(Exception):
    """An event that Coterie's own actors never send."""


def check_events(
    events: Sequence[Event],
    call: int,
    limits: Mapping[int, int | None],
    layouts: Mapping[str, Layout],
) -> None:
    """Check events against the call that they came from.

    Args:
        events: The events.
        call: The call.
        limits: Clients whose tasks are in it to their largest weights; None where contributions
            count alike.
        layouts: Slot to the layout of its contributions.

    Raises:
        StrangeEventError: If there is none, or one is of another call, another client, or another
            form.
    """
    if not events or not all(_is_of(event, call, limits, layouts) for event in events):
        raise StrangeEventError


def _is_of(
    event: object, call: int, limits: Mapping[int, int | None], layouts: Mapping[str, Layout]
) -> bool:
    match event:
        case CallDone(call=int(own)):
            formed = _is_line(event.device) and _are_sums(event.sums, layouts, limits.values())
            return own == call and formed
        case ClientStarted(call=int(own), client=int(client)):
            formed = True
        case ClientResult(call=int(own), client=int(client)):
            formed = _is_result(event)
        case ClientFailed(call=int(own), client=int(client), refused=bool(), trace=str()):
            formed = _is_line(event.message)
        case _:
            return False
    return own == call and client in limits and formed


def _is_result(event: ClientResult) -> bool:
    metrics: Any = event.metrics
    return (
        _is_packed(event.gathered)
        and isinstance(metrics, Mapping)
        and all(type(name) is str and _is_finite(value) for name, value in metrics.items())
        and _is_finite(event.seconds)
        and _is_line(event.note)
        and all(_are_counts(getattr(event, name)) for name in _COUNTS)
    )


def _is_packed(packed: object) -> bool:
    if not isinstance(packed, Packed):
        return False
    try:
        unpack(packed)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # its fields are none
        return False
    return True


def _are_sums(sums: object, layouts: Mapping[str, Layout], limits: Collection[int | None]) -> bool:
    if not (isinstance(sums, Mapping) and sums.keys() <= layouts.keys()):
        return False
    return all(_is_sum(found, layouts[slot], limits) for slot, found in sums.items())


def _is_sum(found: object, layout: Layout, limits: Collection[int | None]) -> bool:
    return (
        isinstance(found, FixedPointSum)
        and all(_is_limb(limb, layout.elements) for limb in (found.high, found.low))
        and all(type(n) is int for n in (found.weight, found.bound))
        and found.is_possible(layout, limits)
    )


def _is_limb(limb: object, elements: int) -> bool:
    kinds = (torch.int64, torch.float64)
    return isinstance(limb, Tensor) and limb.shape == (elements,) and limb.dtype in kinds


def _are_counts(counts: object) -> bool:
    return isinstance(counts, Mapping) and all(
        type(name) is str and type(count) is int and count >= 0 for name, count in counts.items()
    )


def _is_finite(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value)  # type: ignore[arg-type]


def _is_line(text: object) -> bool:
    return type(text) is str and (text == "" or text.isprintable())
