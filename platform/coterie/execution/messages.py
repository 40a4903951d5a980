"""Checks and measures every message: declared keys, shapes, types and ranges, bytes."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from numbers import Real
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn import Parameter

from coterie.aggregation.exact import (
    Layout,
    check_positive,
    check_value,
    magnitude,
)
from coterie.config.record_names import RESERVED
from coterie.contract.phase import Outcome, Phase, ServerState, Slots, Tensors, WeightedUpdate
from coterie.contract.roles import is_variance
from coterie.contract.tensor_spec import ANY, DTYPES, LARGEST, Bounds, Length, TensorSpec
from coterie.errors import ContractError, printable

ValueT = TypeVar("ValueT")

WEIGHT_BYTES = 8
"""Each contribution carries its weight, one int64."""
_LONGEST_NAME = 1000
_MOST_METRICS = 1000
_MOST_SAMPLES = 2**53
_NOT_FINITE = "is not finite; lower the learning rate, scale the data, or drop the client."


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
    phase: Phase,
    outcome: Outcome,
    layouts: Mapping[str, Layout],
    clients: Collection[int] | None,
    *,
    samples: int = 1,
) -> Outcome:
    """Check an outcome against the phase, before anything of it is sent.

    Args:
        phase: The declaration.
        outcome: The result of a client's task.
        layouts: Slot to the layout that contributions must have.
        clients: The clients that it may send messages to, or None if they are not known here.
        samples: The client's number of samples.

    Returns:
        The outcome, its metrics as plain floats.

    Raises:
        ContractError: Naming the first undeclared or missing key, or wrong shape, type or range.
    """
    if not isinstance(outcome, Outcome):
        raise ContractError(f"It returned {type(outcome).__name__}; return an Outcome.")
    outcome = _plain_outcome(outcome)
    peer_keys = {key for message in outcome.peer_messages.values() for key in message}
    sent = (
        ("up", "sends up slot", set(outcome.up), phase.up),
        ("gathered", "sends gathered tensor", set(outcome.gathered), phase.gathered),
        ("peer_messages", "sends peer message", peer_keys, phase.peer_messages),
        ("metrics", "reports metric", _closed_metrics(phase, outcome.metrics), phase.metrics),
    )
    for declared_as, verb, keys, declared in sent:
        if extra := keys - declared:
            raise ContractError(_undeclared(verb, extra, declared_as, phase))
    for slot, contribution in outcome.up.items():
        _check_contribution(slot, contribution, layouts[slot])
        _check_bounds(slot, contribution, phase.bounds.get(slot, {}), samples)
    if missing := (phase.gathered & set(phase.specs)) - set(outcome.gathered):
        raise ContractError(
            f"Phase {phase.name!r} declares gathered tensor {sorted(missing)[0]!r}; send it from "
            "every client."
        )
    _check_specs("gathered", outcome.gathered, phase, samples)
    for recipient, message in outcome.peer_messages.items():
        _check_recipient(recipient, clients)
        _check_specs(f"peer message to client {recipient}", message, phase, samples)
    _check_smallest(outcome.smallest)
    _check_state(outcome.state or {})
    numbers = {name: _plain(name, value) for name, value in outcome.metrics.items()}
    for name, number in numbers.items():
        spec = phase.specs.get(name, ANY)
        _check_range(f"metric: {name!r}", number, number, spec, samples, floating=True)
    return replace(outcome, metrics=numbers)


def _plain_outcome(outcome: Outcome) -> Outcome:
    """Return an outcome of plain dictionaries, names and tensors.

    Types of the client's own could show the checks other values than they send, or fail on the way.
    """
    up = {
        slot: WeightedUpdate(weight=sent.weight, tensors=_named("up", sent.tensors))
        for slot, sent in _named("up", outcome.up).items()
    }
    messages = {
        recipient: _named("peer_messages", message)
        for recipient, message in dict(outcome.peer_messages).items()
    }
    return Outcome(
        up=up,
        gathered=_named("gathered", outcome.gathered),
        state=None if outcome.state is None else _named("state", outcome.state),
        peer_messages=messages,
        metrics=_named("metrics", outcome.metrics),
        smallest=_named("smallest", outcome.smallest),
        note=outcome.note,
    )


def _named(part: str, given: Mapping[str, ValueT]) -> dict[str, ValueT]:
    """Return a part of an outcome as a dictionary, its tensors of the plain type.

    They are new objects, because also a plain tensor may have attributes in the place of methods.
    """
    found: dict[str, Any] = {}
    for name, value in dict(given).items():
        _check_name(f"Outcome.{part}", name)
        if isinstance(value, Tensor) and not _is_sparse(value):
            with torch._C.DisableTorchFunctionSubclass():  # the client's, too, is then not called
                found[name] = Tensor.as_subclass(value, Tensor)
        else:
            found[name] = value
    return found


def _is_sparse(value: Tensor) -> bool:
    """Return whether a tensor is sparse: it cannot be copied, and a later check refuses it."""
    return type(value) in (Tensor, Parameter) and value.layout is not torch.strided


def bytes_up(outcome: Outcome) -> dict[str, int]:
    """Return the bytes sent to the server, weights and metrics too, by slot or "gathered/<key>"."""
    sizes = {
        slot: size_of(mean.tensors) + WEIGHT_BYTES for slot, mean in sorted(outcome.up.items())
    }
    sizes |= {f"gathered/{key}": value.nbytes for key, value in sorted(outcome.gathered.items())}
    if outcome.metrics:
        sizes["metrics"] = 8 * len(outcome.metrics)
    return sizes


def bytes_peer(outcome: Outcome) -> dict[str, int]:
    """Return the bytes sent to other clients, by key, over all recipients."""
    return _over_recipients(outcome, lambda value: value.nbytes)


def items_peer(outcome: Outcome) -> dict[str, int]:
    """Return the rows (samples, embeddings) sent to other clients, by key, over all recipients.

    A tensor without dimensions counts as one.
    """
    return _over_recipients(outcome, lambda value: len(value) if value.ndim else 1)


def _over_recipients(outcome: Outcome, measure: Callable[[Tensor], int]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for message in outcome.peer_messages.values():
        for key, value in message.items():
            sums[key] = sums.get(key, 0) + measure(value)
    return sums


def size_of(tensors: Tensors) -> int:
    """Return the bytes of named tensors."""
    return sum(value.nbytes for value in tensors.values())


def _closed_metrics(phase: Phase, metrics: Mapping[str, object]) -> set[str]:
    """Return the metrics that a phase has to declare, and check names and number of all others."""
    if taken := sorted(metrics.keys() & set(RESERVED)):
        raise ContractError(f"metric: {taken[0]!r} names a column of every row; rename it.")
    if not phase.open_metrics:
        return set(metrics)
    if len(metrics) > _MOST_METRICS:
        raise ContractError(f"It reports {len(metrics)} metrics; log at most {_MOST_METRICS}.")
    return set()


def _check_recipient(recipient: object, clients: Collection[int] | None) -> None:
    if type(recipient) is not int:
        raise ContractError(f"A peer message goes to client {recipient!r}; give its id as an int.")
    if clients is not None and recipient not in clients:
        raise ContractError(
            f"A peer message goes to client {recipient}; send it to one that may receive it."
        )


def _check_name(what: str, name: object) -> None:
    """Check a name, since names are written to files and read again."""
    if type(name) is not str or len(name) > _LONGEST_NAME or not name.isprintable():
        raise ContractError(
            f"{what} has the key {printable(repr(name))}; give a printable str of at most "
            f"{_LONGEST_NAME} characters."
        )


def _check_state(state: Tensors) -> None:
    for name, value in state.items():
        _check_tensor("state", name, value)


def _check_smallest(smallest: Mapping[str, object]) -> None:
    for name, fewest in smallest.items():
        if type(fewest) is not int or not 0 <= fewest <= _MOST_SAMPLES:
            raise ContractError(
                f"Outcome.smallest[{name!r}] is {fewest!r}; give an int from 0 to 2^53."
            )


def _check_layout(slot: str, tensors: Tensors, layout: Layout) -> None:
    for name, value in tensors.items():
        _check_tensor(f"slot {slot!r}", name, value)
    given = {name: tuple(value.shape) for name, value in tensors.items()}
    wanted = dict(zip(layout.names, layout.shapes, strict=True))
    if given != wanted:
        wrong = sorted(name for name in given | wanted if given.get(name) != wanted.get(name))[0]
        if wrong not in wanted:
            found, remedy = "is new", "the server's tensors, which a module creates in __init__"
        elif wrong not in given:
            found, remedy = "is missing", "all of the server's tensors"
        else:
            found = f"has shape {given[wrong]} for {wanted[wrong]}"
            remedy = "the server's shapes"
        raise ContractError(f"Slot {slot!r}: {wrong!r} {found}; send {remedy}.")
    for name, dtype in zip(layout.names, layout.dtypes, strict=True):
        if tensors[name].dtype != dtype:
            raise ContractError(f"slot {slot!r}: {name!r} is {tensors[name].dtype}; send {dtype}.")


def _check_contribution(slot: str, contribution: WeightedUpdate, layout: Layout) -> None:
    check_positive(slot, contribution.weight)
    _check_layout(slot, contribution.tensors, layout)
    for name in layout.names:
        # One pass without a mask in memory; both bounds of a tensor with a NaN are NaN.
        found = magnitude(contribution.tensors[name])
        if not math.isfinite(found):
            raise ContractError(f"slot {slot!r}: {name!r} {_NOT_FINITE}")
        check_value(slot, layout, contribution.weight, found)
        if is_variance(name) and bool((contribution.tensors[name] < 0).any()):
            raise ContractError(
                f"Slot {slot!r}: {name!r} has a value below 0; send a variance as it is measured."
            )


def _check_bounds(
    slot: str, contribution: WeightedUpdate, bounds: Mapping[str, Bounds], samples: int
) -> None:
    for name, bound in bounds.items():
        value = contribution.tensors[name].detach().double() * contribution.weight
        lowest, highest = bound.of(samples)
        outside = (value < lowest) | (value > highest)
        if bool(outside.any()):
            found = float(value[outside][0])
            raise ContractError(
                f"Slot {slot!r}: {name!r} has a value of {found:.6g}, which no sum over the "
                f"client's {samples} samples can have; send the sum over its samples."
            )


def _check_specs(what: str, tensors: Tensors, phase: Phase, samples: int) -> None:
    for name, value in tensors.items():
        spec = phase.specs.get(name, ANY)
        _check_tensor(what, name, value)
        floating = value.is_floating_point()
        accepted = floating if spec.dtype == "floating" else spec.dtype in ("real", value.dtype)
        if not accepted:
            raise ContractError(f"{what}: {name!r} is {value.dtype}; send {spec.dtype}.")
        if spec.shape is not None and not _fits(tuple(value.shape), spec.shape):
            lengths = ", ".join(_shown(length) for length in spec.shape)
            raise ContractError(
                f"{what}: {name!r} has shape {tuple(value.shape)}; send ({lengths})."
            )
        other = None if spec.as_long_as is None else tensors.get(spec.as_long_as)
        if other is not None and len(value) != len(other):
            raise ContractError(
                f"{what}: {name!r} has {len(value)} rows, and {spec.as_long_as!r} {len(other)}; "
                "send equally many."
            )
        if value.numel() and (floating or spec.lowest is not None or spec.highest is not None):
            low, high = (bound.item() for bound in torch.aminmax(value.detach()))
            _check_range(f"{what}: {name!r}", low, high, spec, samples, floating=floating)


def _plain(name: str, value: Any) -> float:
    """Return a metric as a plain number.

    Another conversion of a client's type might give another value.
    """
    if not isinstance(value, Real):
        raise ContractError(f"metric: {name!r} is {type(value).__name__}; report a number.")
    return float(value)


def _check_range(
    what: str, low: float, high: float, spec: TensorSpec, samples: int, *, floating: bool
) -> None:
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ContractError(f"{what} {_NOT_FINITE}")
    widest = LARGEST if floating else math.inf
    unit = samples if spec.per_sample else 1
    lowest = -widest if spec.lowest is None else spec.lowest * (unit if spec.lowest < 0 else 1)
    highest = widest if spec.highest is None else spec.highest * unit
    if low < lowest or high > highest:
        found = low if low < lowest else high
        raise ContractError(
            f"{what} has a value of {found:.6g}; send {lowest:.6g} to {highest:.6g}."
        )


def _fits(shape: tuple[int, ...], wanted: tuple[Length, ...]) -> bool:
    lengths = zip(shape, wanted, strict=False)
    return len(shape) == len(wanted) and all(
        w is None or (n in w if isinstance(w, range) else n == w) for n, w in lengths
    )


def _shown(length: Length) -> str:
    if isinstance(length, range):
        return f"{length.start} to {length.stop - 1}"
    return "any" if length is None else str(length)


def _check_tensor(what: str, name: str, value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ContractError(f"{what}: {name!r} is {type(value).__name__}; send a tensor.")
    if value.is_meta:
        raise ContractError(f"{what}: {name!r} has no values; take it off the meta device.")
    if value.dtype not in DTYPES or value.layout is not torch.strided:
        kind = value.dtype if value.layout is torch.strided else value.layout
        raise ContractError(f"{what}: {name!r} is {kind}; send a dense tensor of real numbers.")


def _undeclared(verb: str, keys: set[str], declared_as: str, phase: Phase) -> str:
    key = sorted(keys)[0]
    return f"Phase {phase.name!r} {verb} {key!r} undeclared; add it to Phase.{declared_as}."
